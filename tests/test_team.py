"""Who plays with a policy that is evaluated, and in which environments it can play."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from bit_players import checkpoint_of

from asyncrl.envs.factory import make_env
from asyncrl.envs.spaces import read_spec
from asyncrl.envs.spec import DiscreteAction
from asyncrl.evaluate import main
from asyncrl.evaluation.team import same_spaces
from asyncrl.storage.run_folder import MARKER


def test_independent_policies_play_their_own_agents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    own = {"num_policies": 2, "policy_mapping": "independent"}
    for agent, names_the_bit in enumerate((True, False)):
        checkpoint_of(run / "checkpoints" / f"policy_{agent}", "agent_envs:opposed", names_the_bit, **own)
    (run / MARKER).touch()
    for agent in range(2):
        assert main([f"--checkpoint={run / 'checkpoints' / f'policy_{agent}'}", "--episodes=4", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["mean_reward"] == 5.0
    alone = checkpoint_of(tmp_path / "alone", "agent_envs:opposed", True, **own)
    assert main([f"--checkpoint={alone}"]) == 2
    assert "plays one agent of several (--policy_mapping=independent)" in capsys.readouterr().err


def test_policies_of_one_environment_play_in_another_that_differs_in_nothing_they_see() -> None:
    spec = read_spec(make_env("CartPole-v1"), "CartPole-v1")
    shaped = dataclasses.replace(spec, env_id="other", max_episode_steps=7, reward_shaping=(("bonus", 1.0),))
    assert same_spaces(spec, shaped)
    # What only the probe in training finds out.
    found = {"made_of": "CartPole-v1", "keeps_spaces": False, "takes_training_info": True, "frames_per_step": 4}
    found |= {"gives_tensors": True, "computes_reward": True, "is_vectorized": True, "resets_within_step": True}
    assert same_spaces(spec, dataclasses.replace(spec, **found))
    assert not same_spaces(spec, dataclasses.replace(spec, action=DiscreteAction(5, 0)))

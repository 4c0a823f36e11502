"""Whole runs of recurrent SAC and TD3: what they store, what they remember, and how they are resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from resuming import whole_and_resumed
from run_helper import FinishedRun, mean_return, run

from asyncrl.contrib.recurrent_replay.learner import RecurrentSacLearner
from asyncrl.contrib.recurrent_replay.sampler import Sequences
from asyncrl.models.factory import make_acting_model
from asyncrl.models.sac import SacActor
from asyncrl.storage import checkpoint

pytestmark = pytest.mark.usefixtures("leaves_nothing")

RECURRENT: dict[str, Any] = {
    "algo": "sac",
    "use_rnn": True,
    "rnn_size": 24,
    "num_workers": 1,
    "num_envs_per_worker": 4,
    "encoder_mlp_layers": [32],
    "nonlinearity": "relu",
    "policy_initialization": "torch_default",
    "max_grad_norm": 0.0,
    "precision": "float32",
    "recurrence": 8,
    "burn_in": 4,
    "batch_size": 128,
    "replay_size": 5000,
    "warmup_env_steps": 400,
    "updates_per_env_step": 0.1,
    "lr_schedule": "constant",
    "learning_rate": 0.003,
    "tau": 0.02,
}
RECALL = {**RECURRENT, "gamma": 0.0, "reward_scale": 18.0, "ent_coef": 0.05, "train_for_env_steps": 3200}


def check_states(finished: FinishedRun) -> int:
    """Fails unless each stored state is that of a policy stepped from its episode's start; returns how many rows.

    The policy was not trained, so all of it acted with the same weights. A worker that started late may have no row.
    """
    assert finished.outcome.checkpoint is not None, finished.outcome.error
    content, num_rows = checkpoint.load(Path(finished.outcome.checkpoint), with_replay=True), 0
    model = make_acting_model(finished.spec, finished.config)
    assert isinstance(model, SacActor)
    model.load_state_dict(dict(content.model))
    columns = {name: np.concatenate(parts) for name, parts in content.replay.columns.items()}
    for split in range(finished.plan.num_splits):
        own = {name.partition(".")[0]: field for name, field in columns.items() if name.endswith(f".{split}")}
        state = torch.zeros(own["rnn_state"].shape[1:])
        for row, stored in enumerate(own["rnn_state"]):
            valid = own["valid"][row]  # no sequence begins at other rows
            np.testing.assert_allclose(state.numpy()[valid], stored[valid], atol=1e-5)
            _, state = model.step(model.inputs_of(torch.from_numpy(own["obs"][row])), state)
            ends = own["terminated"][row] | ~own["valid"][row]
            state = state.detach().masked_fill(torch.from_numpy(ends).unsqueeze(1), 0.0)
            num_rows += 1
    assert any(field.any() for name, field in columns.items() if name.startswith("rnn_state."))
    return num_rows


@pytest.mark.parametrize(("algo", "mode"), [("sac", "serial"), ("sac", "sync-local"), ("td3", "async-central")])
def test_states_are_stored_as_the_policy_had_them_and_a_resumed_run_continues_with_them(
    algo: str, mode: str, tmp_path: Path
) -> None:
    settings = {**RECURRENT, "algo": algo, "learning_rate": 0.0, "save_replay": True, "num_workers": 2}
    settings |= {"warmup_env_steps": 300, "env_kwargs": {"terminates": mode == "serial", "is_continuous": True}}
    first = run(tmp_path / "first", mode, "EndlessReward", train_for_env_steps=700, **settings)
    assert check_states(first) > 100
    resumed = run(
        tmp_path / "resumed",
        mode,
        "EndlessReward",
        resume_from=Path(first.outcome.checkpoint),
        train_for_env_steps=1000,
        **settings,
    )
    assert check_states(resumed) > 150


def test_sequences_have_the_rows_that_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, shapes = RecurrentSacLearner.train, set()

    def noting_train(learner: RecurrentSacLearner, batches: list[Sequences], env_steps_before: int) -> Any:
        shapes.update((batch.reward.shape, batch.obs.shape[:2]) for batch in batches)
        return train(learner, batches, env_steps_before)

    monkeypatch.setattr(RecurrentSacLearner, "train", noting_train)
    run(tmp_path, "serial", "CartPole-v1", **{**RECURRENT, "train_for_env_steps": 600})
    # 16 sequences: of 8 rows to train on, after 4 of the burn-in and before the last next observation.
    assert shapes == {((16, 8), (16, 4 + 8 + 1))}


def test_a_recurrent_policy_recalls_what_was_shown(tmp_path: Path) -> None:
    finished = run(tmp_path, "serial", "space_envs:Recall-v0", **RECALL)
    assert mean_return(finished) > 0.9  # of 1; a third is chance


def test_a_recurrent_policy_of_td3_echoes_the_number_before(tmp_path: Path) -> None:
    settings = {"algo": "td3", "gamma": 0.0, "reward_scale": 4.0, "train_for_env_steps": 3200}
    settings |= {"exploration_stddev": 0.3}
    finished = run(tmp_path, "serial", "space_envs:Echo-v0", **{**RECURRENT, **settings})
    assert mean_return(finished) > -0.3  # of 0; -1 at best without memory


def test_a_serial_run_that_is_resumed_equals_one_that_never_stopped(tmp_path: Path) -> None:
    settings = {**RECURRENT, "save_replay": True, "normalize_input": True}
    settings |= {"warmup_env_steps": 200, "train_for_env_steps": 500, "save_every_env_steps": 300}
    first, second = whole_and_resumed(tmp_path, "CartPole-v1", **settings)
    assert first.replay is not None and second.replay is not None
    columns, others = first.replay.columns, second.replay.columns
    assert all(np.array_equal(column[0], others[name][0]) for name, column in columns.items())
    assert "rnn_state.0" in columns

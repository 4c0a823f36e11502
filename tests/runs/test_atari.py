"""A game of Atari as a user trains and evaluates it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from command import Command

SMALL = (
    "--num_workers=2",
    "--num_envs_per_worker=2",
    "--rollout=32",
    "--batch_size=64",
    "--num_batches_per_epoch=2",
    "--num_epochs=1",
    "--encoder_conv_mlp_layers=[16]",
    "--learner_threads=1",
    "--report_every_s=0.5",
)


@pytest.mark.usefixtures("leaves_nothing")
def test_a_game_is_trained_by_the_preset_and_whole_games_are_evaluated(start: Callable[..., Command]) -> None:
    # A game of Breakout has five lives, of which training makes episodes; cut off so early it is one game still.
    game = ('--env_kwargs={"max_num_frames_per_episode": 2000}', "--env_backend=gym_vector")
    training = start("asyncrl.train", "--env=ALE/Breakout-v5", *game, *SMALL, "--train_for_env_steps=800")
    code, stdout, stderr = training.finish()
    assert code == 0, stderr
    assert "atari" in stdout, "the preset is named"
    last = training.records()[-1]
    assert last["time/total_env_steps"] >= 800
    assert last["time/total_frames"] == 4 * last["time/total_env_steps"]
    life = last["rollout/ep_len_mean"]

    code, stdout, stderr = start("asyncrl.evaluate", "--episodes=1", "--json").finish()
    assert code == 0, stderr
    assert json.loads(stdout)["mean_ep_length"] > 2 * life

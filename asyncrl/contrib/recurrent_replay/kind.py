"""The kind of replay that stores recurrent states and draws sequences of rows."""

from __future__ import annotations

from typing import Any

from asyncrl.config.algorithms import Algorithm, Function, imported
from asyncrl.config.replay_kinds import ReplayKind
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.recurrent_replay.settings import RecurrentReplaySettings

_FOLDER = "asyncrl.contrib.recurrent_replay"
_LEARNERS = {"sac": f"{_FOLDER}.learner:RecurrentSacLearner", "td3": f"{_FOLDER}.learner:RecurrentTd3Learner"}
_AUTO_RECURRENCE = 16


def choose(config: TrainConfig) -> ReplayKind | None:
    """The replay of sequences, if the policy is recurrent and the algorithm can learn from them."""
    if not config.use_rnn or not config.is_off_policy or _learner_of(config.algorithm) is None:
        return None
    length, burn_in = recurrence(config), RecurrentReplaySettings.of(config).burn_in
    return ReplayKind(
        num_values=config.rnn_state_size_of_core,
        arrays=f"{_FOLDER}.stripes:state_specs",
        stripes=f"{_FOLDER}.stripes:RecurrentStripes",
        sink=f"{_FOLDER}.stripes:RecurrentSink",
        rows_of_sample=burn_in + length + 1,
        sampler=f"{_FOLDER}.sampler:make_sampler",
        sampler_arguments={"recurrence": length, "burn_in": burn_in},
        learner=f"{_FOLDER}.kind:make_learner",
    )


def recurrence(config: TrainConfig) -> int:
    """Rows of a sequence that are trained on."""
    return _AUTO_RECURRENCE if config.recurrence == "auto" else config.recurrence


def make_learner(model: Any, config: TrainConfig, *args: Any) -> Any:
    """The learner of the algorithm, see `Algorithm.make_recurrent_learner`."""
    return imported(_learner_of(config.algorithm))(model, config, *args)


def _learner_of(algorithm: Algorithm) -> Function | None:
    return algorithm.make_recurrent_learner or _LEARNERS.get(algorithm.name)

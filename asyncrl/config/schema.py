"""The one schema of a run: the settings of all sections of `asyncrl.config.sections`, and what follows from them.

`asyncrl.config.other_names` lists the settings that have the names of other libraries. `auto` values stay `auto` here;
`asyncrl.config.plan` resolves them into the `ResourcePlan` that the roles read.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from asyncrl.config.algorithms import Algorithm, find_algorithm, spell_out
from asyncrl.config.errors import ConfigError, Problem, UsageError
from asyncrl.config.hooks import hooks, load
from asyncrl.config.sections.dqn import DqnSettings
from asyncrl.config.sections.evaluation import EvaluationSettings
from asyncrl.config.sections.failures import FailureSettings
from asyncrl.config.sections.hogwild import HogwildSettings
from asyncrl.config.sections.learning import LearningSettings
from asyncrl.config.sections.model import ModelSettings
from asyncrl.config.sections.output import OutputSettings
from asyncrl.config.sections.policies import PolicySettings
from asyncrl.config.sections.ppo import PpoSettings
from asyncrl.config.sections.replay import ReplaySettings
from asyncrl.config.sections.roles import RoleSettings
from asyncrl.config.sections.run import RunSettings
from asyncrl.config.sections.sac import SacSettings
from asyncrl.config.sections.section import Section
from asyncrl.config.sections.td3 import Td3Settings
from asyncrl.config.sections.trajectories import TrajectorySettings
from asyncrl.config.value_types import ActionMapping

OF_ONE_START = ("train_dir", "experiment", "restart_behavior", "train_for_seconds", "quiet", "progress", "profile")
"""Settings of one start of the program: config.yaml does not contain them, and a resumed run does not inherit them."""

NEEDED_BY_TENSORS: dict[str, Any] = {
    "serial_mode": True,
    "async_rl": False,
    "num_workers": 1,
    "backend": "actor_learner",
    "debug_forced_lag": 0,
}
"""Settings of every run with env_backend=tensor; the user may give the same values, but no others."""


if TYPE_CHECKING:

    class _Features(Section):
        """The sections of features, whose fields only the features know (`Section.of`)."""
else:
    _FEATURES = tuple(load(place) for place, _ in reversed(hooks("SETTINGS").values()))
    _Features = types.new_class("_Features", _FEATURES or (Section,))


# The last section is the first in --help and config.yaml.
class TrainConfig(
    _Features,
    OutputSettings,
    FailureSettings,
    PolicySettings,
    ModelSettings,
    HogwildSettings,
    DqnSettings,
    Td3Settings,
    SacSettings,
    ReplaySettings,
    PpoSettings,
    TrajectorySettings,
    LearningSettings,
    RoleSettings,
    EvaluationSettings,
    RunSettings,
):
    """All settings of a training run; immutable, and every argument is optional.

    The settings are those of the command line, with the same names, ranges and defaults;
    `asyncrl train --help=all` describes each. Numbers and truth values may be given as text. A setting that
    is not given comes from the saved run if the run is resumed, else from the preset for the environment and from the
    defaults of the algorithm; `RunResult.config` has the final values.

    Example:
        config = TrainConfig(env="Humanoid-v5", train_for_env_steps=1_000_000, num_workers=8)
        longer = config.model_copy(update={"train_for_env_steps": 2_000_000})

    Raises:
        asyncrl.UsageError: settings are unknown or have values that are not possible; one line for each.
    """

    if not TYPE_CHECKING:  # type checkers know the signature of the fields

        def __new__(cls, *positional, **_):
            """Refuses settings without their names."""
            if positional:
                raise UsageError(f"TrainConfig takes settings by name: give TrainConfig(env={positional[0]!r}).")
            return super().__new__(cls)

    @classmethod
    def from_saved(cls, values: Any) -> TrainConfig:
        """The settings that a run or a checkpoint was saved with.

        Raises:
            UsageError: settings are unknown or have values that are not possible, or the module of the algorithm cannot
                be imported.
        """
        if not isinstance(values, dict):
            raise UsageError("There are no settings: expected lines of `name: value`.")
        name = str(values.get("algo", "ppo"))
        try:
            algorithm = find_algorithm(name, values.get("import_modules", ()))
        except UsageError:
            raise
        except Exception as error:
            raise UsageError(f"--algo={name}: a module raised {type(error).__name__}: {error}") from error
        config_type = algorithm.settings or cls
        if unknown := [str(name) for name in values if name not in config_type.model_fields]:
            text = "Unknown settings, which a feature that is not installed may have written"
            raise ConfigError([Problem((), f"{text}: {', '.join(unknown)}.")])
        return config_type.model_validate(values)

    @model_validator(mode="wrap")
    @classmethod
    def _explain_refusals(cls, values: Any, validate: ModelWrapValidatorHandler[TrainConfig]) -> TrainConfig:
        """Raises every mistake as the sentence that the command line has for it, in place of pydantic's error.

        A short name of an algorithm, as `a3c`, is replaced by the settings that it means.
        """
        if isinstance(values, dict):
            values = dict(values)
            if problems := spell_out(values):
                raise ConfigError(problems)
        try:
            return validate(values)
        except ValidationError as error:
            if not isinstance(values, dict):
                raise
            details = {str(detail["loc"][0]) if detail["loc"] else "": detail for detail in error.errors()}
        from asyncrl.config.flags import refused_value, unknown_name
        from asyncrl.config.settings import all_settings

        known = all_settings(cls)
        refused = []
        for name, detail in details.items():
            reason = str(detail.get("ctx", {}).get("error", ""))
            if not name or (name == "algo" and not reason.startswith("There is no algorithm")):  # the check says why
                refused.append(Problem((name,) if name else (), reason or detail["msg"]))
            elif name in known:
                value = values.get(name, known[name].default)
                more = "" if name == "algo" else reason  # which names the algorithms, as what is expected does
                refused.append(refused_value(name, value, known[name].expected, reason=more))
            else:
                refused.append(unknown_name(name, known, f"There is no setting {name}"))
        raise ConfigError(refused)

    @property
    def env_id(self) -> str:
        """The environment's id, or `module:name` of a callable (an `EnvMaker` if it cannot be imported by that)."""
        assert isinstance(self.env, str)
        return self.env

    @property
    def algorithm(self) -> Algorithm:
        """The record of `algo`."""
        return find_algorithm(self.algo, self.import_modules)

    @property
    def is_off_policy(self) -> bool:
        """Whether the algorithm learns from a replay."""
        return self.algorithm.collects == "replay"

    @property
    def rnn_state_size_of_core(self) -> int:
        """Size of the recurrent state of one environment in one recurrent core."""
        return self.rnn_size * self.rnn_num_layers * (2 if self.rnn_type == "lstm" else 1)

    @property
    def squashes(self) -> bool:
        """Whether continuous actions are squashed to their bounds."""
        has_sac_actor = self.is_off_policy and self.algorithm.make_model is None
        return self.squash_actions or self.algorithm.squashes_actions or has_sac_actor

    @property
    def action_mapping(self) -> ActionMapping:
        """How continuous actions are converted for the environment."""
        if self.squashes:
            return "squashed"
        return "rescaled" if self.action_unit == "bounds" else "raw"

    def for_policy(self, policy_idx: int) -> TrainConfig:
        """The settings of one policy of several.

        Raises:
            UsageError: one of its own settings is unknown or has a value that is not possible.
        """
        own = self.policies.get(policy_idx)
        if not own:
            return self
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**values, **own})

    @property
    def maps_policies(self) -> str:
        """`policy_mapping`, with auto resolved."""
        return "by_space" if self.policy_mapping == "auto" else self.policy_mapping

    @property
    def best_metric(self) -> Literal["none", "eval", "train"]:
        """`save_best_metric`, with auto resolved."""
        if self.save_best_metric != "auto":
            return self.save_best_metric
        if not self.has_comparable_returns:
            return "none"
        return "train" if self.eval_every_env_steps is None else "eval"

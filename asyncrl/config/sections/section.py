"""A section of the settings: a class of fields, each with its help and what decides whether a run reads it.

_settings = section("hogwild", backend=("hogwild",))

class HogwildSettings(Section):
    hogwild_mode: Literal["auto", "shared"] = _settings("auto", "which parameters a worker acts with")
    combine_gradients: Literal["mean", "sum"] = _settings("mean", "how", hogwild_mode=("gradients",))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from asyncrl.config.remote_workers import NO_REMOTE_WORKERS, RemoteWorkers

IS_SET = ("anything",)
"""The condition that another setting has a value."""

ON_DATASETS = ("ppo", "a2c")
ON_TRAJECTORIES = ("ppo", "a2c", "a3c")
ON_BATCHES = ("ppo", "a2c", "sac", "td3", "dqn")
OFF_POLICY = ("sac", "td3", "dqn")
ACTOR_CRITICS = ("sac", "td3")
OWN_MODELS = ("ppo", "a2c", "a3c", "sac")
ADAPTIVE = ("kl_adaptive_minibatch", "kl_adaptive_epoch")
SINGLE_ENVS = ("auto", "gym", "gym_vector", "envpool")

OwnSection = TypeVar("OwnSection", bound="Section")

Fixed = Literal["run", "networks"]
"""What keeps a setting: a resumed `run`, or also a new run that takes from a checkpoint the `networks` that fit."""


class Opponents(NamedTuple):
    """Frozen policies that play against the one that trains.

    Attributes:
        setting: the switch without which there are none.
        most: how many there are at most.
        mapping: `asyncrl.rollout.policy_mapping.MakeMapping` of a split, as `module:function`.
    """

    setting: str
    most: int
    mapping: str


class Section(BaseModel):
    """Settings of one subject.

    By its properties the core asks all sections what a run needs; the section of a feature overrides them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False, validate_default=True)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The settings that `repr` shows: those that differ from their defaults."""
        for name, field in type(self).model_fields.items():
            if (value := getattr(self, name)) != field.get_default(call_default_factory=True):
                yield name, value

    @property
    def opponents(self) -> Opponents | None:
        """Frozen policies that play and never train; None without any."""
        return None

    @property
    def remote_workers(self) -> RemoteWorkers:
        """Rollout workers on other machines."""
        return NO_REMOTE_WORKERS

    @property
    def has_comparable_returns(self) -> bool:
        """Whether returns at different times of the run can be compared, so that they can choose the best policy."""
        return True

    @property
    def model_classes(self) -> Mapping[str, str]:
        """Classes that replace models of the core, `ActorCritic` or `SacActor`: `module:name` by the replaced name."""
        return {}

    @classmethod
    def of(cls: type[OwnSection], config: Section) -> OwnSection:
        """The same settings with the type of this section, for a feature whose section `TrainConfig` does not name."""
        assert isinstance(config, cls)
        return config


class MakesSetting(Protocol):
    """Returns the field of a setting."""

    def __call__(
        self, default: Any, description: str, *, fixed: Fixed | None = None, **needs: tuple[Any, ...]
    ) -> Any: ...


def section(title: str, **needs: tuple[Any, ...]) -> MakesSetting:
    """Returns a function that makes the fields of one section.

    Args:
        title: key of `asyncrl.config.settings.SECTION_TITLES`, under which --help shows the settings.
        needs: values that other settings must have so that a run reads the settings of this section, by name; `IS_SET`
            for any value. `algo` is a3c for A2C with Hogwild. A setting can add conditions, or replace one.
    """
    of_section = needs

    def setting(default: Any, description: str, *, fixed: Fixed | None = None, **needs: tuple[Any, ...]) -> Any:
        extra: dict[str, Any] = {"section": title, "needs": {**of_section, **needs}, "fixed": fixed}
        return Field(default=default, description=description, json_schema_extra=extra)

    return setting

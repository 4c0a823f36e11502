"""Options that `evaluate` and `enjoy` share, and options of features that play in another way than these do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Json, create_model

from asyncrl.config.flags import option
from asyncrl.config.hooks import hooks, load
from asyncrl.config.value_types import utf8_argument

Model = TypeVar("Model", bound=BaseModel)
EnvArguments = Annotated[Json[dict[str, Any]], BeforeValidator(utf8_argument)]

ENV = option(None, "another environment with the same spaces, such as the run's in its new module")
ENV_ARGUMENTS = option(
    {},
    "keyword arguments for the environment, as JSON, that differ from those of the run",
    'a JSON object, such as {"size": 3}',
)
SEED = option(0, "seed of the episodes and of the sampled actions [default 0]")
DEVICE = option("cpu", "device of the policy: cpu, cuda or cuda:N [default cpu]")


@dataclass(frozen=True)
class PlayerOption:
    """An option that takes text. Its functions are named as `module:function`.

    Attributes:
        name: the option.
        descriptions: for --help, by command; a command that is not in it does not have the option.
        examples: command lines for --help, by the same commands.
        evaluate: function of a checkpoint and the options of `evaluate` that plays, and returns what is printed.
        plays: what `evaluate` plays.
        make_teams: of an option of `enjoy`: function of a policy, its checkpoint and the options of `enjoy` that
            returns the `asyncrl.evaluation.team.Team`s that play the episodes in turn.
        excludes: options of `evaluate` that are not possible with it.
    """

    name: str
    descriptions: Mapping[str, str]
    examples: Mapping[str, str]
    evaluate: str
    plays: str
    make_teams: str = ""
    excludes: tuple[str, ...] = ()


def player_options() -> list[PlayerOption]:
    """The options of all features that are installed."""
    return [load(place) for place in hooks("PLAYERS").values()]


def options_of(command: str) -> list[PlayerOption]:
    """Those that a command has."""
    return [each for each in player_options() if command in each.descriptions]


def given_player_options(options: BaseModel) -> list[PlayerOption]:
    """The options of features that are given."""
    return [each for each in player_options() if getattr(options, each.name, None) is not None]


def with_player_options(model: type[Model], command: str) -> type[Model]:
    """The options of a command, and those of features."""
    fields: dict[str, Any] = {
        each.name: (str | None, option(None, each.descriptions[command])) for each in options_of(command)
    }
    return create_model(model.__name__, __base__=model, **fields)

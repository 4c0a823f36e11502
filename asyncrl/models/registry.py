"""Networks by name: the package's own, and those that a user's module registers (see `docs/custom.md`).

Every process of a run builds the networks for itself, so a module that registers some must be imported in each: name
it in `import_modules`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.config.user_modules import import_user_modules
from asyncrl.envs.spec import EnvSpec, ObservationLayout
from asyncrl.models.cores import RecurrentCore
from asyncrl.models.encoders import ObservationEncoder

DEFAULT = "default"

Factory = Callable[..., Any]
_F = TypeVar("_F", bound=Factory)
_encoders: dict[str, Factory] = {DEFAULT: ObservationEncoder}
_cores: dict[str, Factory] = {DEFAULT: RecurrentCore}
_models: dict[str, Factory] = {}


def register_encoder(name: str) -> Callable[[_F], _F]:
    """Decorates `make(layout, config)`, which returns an encoder (`asyncrl.models.encoders.FeatureEncoder`)."""
    return _registering(_encoders, "encoder", name)


def register_core(name: str) -> Callable[[_F], _F]:
    """Decorates `make(input_size, config)`, which returns a core with the interface of `RecurrentCore`.

    Its `state_size` must be `config.rnn_state_size_of_core`.
    """
    return _registering(_cores, "core", name)


def register_model(name: str) -> Callable[[_F], _F]:
    """Decorates `make(spec, config)`, which returns an `ActorCritic`, usually of a subclass."""
    return _registering(_models, "model", name)


def make_encoder(layout: ObservationLayout, config: TrainConfig) -> Any:
    """The encoder that the settings name, for rows of that layout.

    Raises:
        UsageError: nobody registered it.
    """
    return _find(_encoders, "encoder", config.encoder, config)(layout, config)


def make_core(input_size: int, config: TrainConfig) -> Any:
    """The core that the settings name, for so many features.

    Raises:
        UsageError: nobody registered it, or its state has another size than the settings say.
    """
    core = _find(_cores, "core", config.core, config)(input_size, config)
    if core.state_size != config.rnn_state_size_of_core:
        raise UsageError(
            f"The core {config.core} has a state_size of {core.state_size}, but rnn_size={config.rnn_size}, "
            f"rnn_num_layers={config.rnn_num_layers} and rnn_type={config.rnn_type} make "
            f"{config.rnn_state_size_of_core}."
        )
    return core


def make_registered_model(spec: EnvSpec, config: TrainConfig) -> nn.Module:
    """The model of a user's own that the settings name.

    Raises:
        UsageError: nobody registered it.
    """
    model: nn.Module = _find(_models, "model", config.model, config)(spec, config)
    return model


def _registering(table: dict[str, Factory], kind: str, name: str) -> Callable[[_F], _F]:
    if name == DEFAULT:
        raise ValueError(f"the name {DEFAULT} belongs to the {kind} of the package: choose another name")

    def register(make: _F) -> _F:
        table[name] = make
        return make

    return register


def _find(table: dict[str, Factory], kind: str, name: str, config: TrainConfig) -> Factory:
    import_user_modules(config.import_modules)
    if name not in table:
        known = ", ".join(sorted({DEFAULT, *table}))
        raise UsageError(
            f"--{kind}={name} is not registered (known: {known}): name the module that registers it with "
            "--import_modules=MODULE."
        )
    return table[name]

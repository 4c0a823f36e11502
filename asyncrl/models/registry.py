"""Networks by name: the default ones, and those that a user's module registers (see `docs/custom.md`).

Every process of a run makes its networks, so every process imports the modules in `import_modules`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.config.user_modules import import_user_module
from asyncrl.envs.spec import EnvSpec, ObservationLayout
from asyncrl.models.cores import RecurrentCore
from asyncrl.models.encoders import ObservationEncoder, PartialEncoder

DEFAULT = "default"

Factory = Callable[..., Any]
_F = TypeVar("_F", bound=Factory)
_encoders: dict[str, Factory] = {DEFAULT: ObservationEncoder}
_cores: dict[str, Factory] = {DEFAULT: RecurrentCore}
_models: dict[str, Factory] = {}
_registered_by: dict[tuple[str, str], str] = {}
"""The module that registered each name, by encoder, core or model and the name."""


def register_encoder(name: str) -> Callable[[_F], _F]:
    """Decorator that registers an encoder, from observations to features, for `--encoder=NAME`.

    It decorates a class or function that is called as `make(layout, config)` and returns an `nn.Module`. The module has
    the attribute `output_size`, the number F of features, and is called with `asyncrl.models.encoders.Inputs` of B
    observations; it returns `[B, F] float32`. Name the module that registers it: `--import_modules=MODULE`.

    Args:
        name: value of `--encoder`, other than "default".

    Returns:
        The decorator, which returns the class or function unchanged.

    Raises:
        ValueError: the name is "default".
    """
    return _registering(_encoders, "encoder", name)


def register_core(name: str) -> Callable[[_F], _F]:
    """Decorator that registers a recurrent core for `--core=NAME`, used with `--use_rnn=True`.

    It decorates a class or function that is called as `make(input_size, config)` and returns an `nn.Module` with the
    attributes and methods of `asyncrl.models.cores.RecurrentCore`: `output_size`, `state_size`, `step` and `unroll`.
    Its `state_size` must be `config.rnn_state_size_of_core`. Arguments and errors are those of `register_encoder`.
    """
    return _registering(_cores, "core", name)


def register_model(name: str) -> Callable[[_F], _F]:
    """Decorator that registers a model for `--model=NAME`.

    It decorates a class or function that is called as `make(spec, config)` and returns an instance of a subclass of
    `asyncrl.models.actor_critic.ActorCritic`, or of `asyncrl.models.sac.SacActor` for SAC. Arguments and errors are
    those of `register_encoder`.
    """
    return _registering(_models, "model", name)


def make_encoder(layout: ObservationLayout, config: TrainConfig) -> Any:
    """Makes the encoder `config.encoder`; raises `UsageError` if it is not registered."""
    return _find(_encoders, "encoder", config.encoder, config)(layout, config)


def make_actor_encoder(layout: ObservationLayout, config: TrainConfig) -> Any:
    """Makes the actor's encoder, which does not see the parts in `config.critic_only_keys`.

    Raises:
        UsageError: the encoder is not registered, or no part is left.
    """
    visible = layout.without(config.critic_only_keys)
    if visible == layout:
        return make_encoder(layout, config)
    if all(part.kind == "mask" for part in visible.parts):
        raise UsageError(f"--critic_only_keys={','.join(config.critic_only_keys)} leaves the actor nothing to see.")
    return PartialEncoder(make_encoder(visible, config), layout, visible)


def make_core(input_size: int, config: TrainConfig) -> Any:
    """Makes the core `config.core`; raises `UsageError` if it is not registered or has a wrong `state_size`."""
    core = _find(_cores, "core", config.core, config)(input_size, config)
    if core.state_size != config.rnn_state_size_of_core:
        raise UsageError(
            f"The core {config.core} has a state_size of {core.state_size}, but rnn_size={config.rnn_size}, "
            f"rnn_num_layers={config.rnn_num_layers} and rnn_type={config.rnn_type} make "
            f"{config.rnn_state_size_of_core}."
        )
    return core


def make_registered_model(spec: EnvSpec, config: TrainConfig) -> nn.Module:
    """Makes the model `config.model`; raises `UsageError` if it is not registered."""
    model: nn.Module = _find(_models, "model", config.model, config)(spec, config)
    return model


def module_that_registered(kind: str, name: str) -> str | None:
    """The module that registered an encoder, core or model; None for one of the package, or that nothing registered."""
    return _registered_by.get((kind, name))


def _registering(table: dict[str, Factory], kind: str, name: str) -> Callable[[_F], _F]:
    if name == DEFAULT:
        raise ValueError(f"the name {DEFAULT} belongs to the {kind} of the package: choose another name")

    def register(make: _F) -> _F:
        table[name] = make
        _registered_by[kind, name] = str(sys._getframe(1).f_globals.get("__name__"))
        return make

    return register


def _find(table: dict[str, Factory], kind: str, name: str, config: TrainConfig) -> Factory:
    for module in config.import_modules:
        import_user_module(module)
    if name not in table:
        known = ", ".join(sorted({DEFAULT, *table}))
        raise UsageError(
            f"--{kind}={name} is not registered (known: {known}): name the module that registers it with "
            "--import_modules=MODULE."
        )
    return table[name]

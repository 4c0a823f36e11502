"""Makes and seeds environments; a wrong id, wrong arguments or a missing package raise one sentence."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_error
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.vector import AutoresetMode, VectorEnv

from asyncrl.config.algorithms import imported
from asyncrl.config.env_maker import EnvMaker, MakesEnv, find_callable, find_object
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import near_hint, nearest_hint, nearest_names
from asyncrl.config.hooks import hooks
from asyncrl.config.schema import TrainConfig
from asyncrl.config.user_modules import import_user_module
from asyncrl.envs import atari, mujoco
from asyncrl.envs.agents import as_agents_env, find_pettingzoo_maker, nearest_pettingzoo_name
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS, EnvironmentFailed, UnknownEnvironment, environment_traceback
from asyncrl.envs.pooled import PooledVectorEnv
from asyncrl.envs.single import VECTOR_SEEDS, SingleEnv
from asyncrl.envs.spaces import has_action_mask, is_of_gym

_INSTALL = {
    "mujoco": 'pip install "gymnasium[mujoco]"',
    "box2d": 'pip install "gymnasium[box2d]"',
    "ale": "pip install ale-py opencv-python-headless",
    "opencv": "pip install opencv-python-headless",
    "pygame": 'pip install "gymnasium[classic-control]"',
    "pettingzoo": 'pip install "pettingzoo[classic]"',
    "mpe2": "pip install mpe2",
}
_NOT_OF_GYMNASIUM = ("Gym is incompatible with Gymnasium", "The environment must inherit from the gymnasium.Env")
_ACTING_SEEDS = 1 << 20
log = logging.getLogger(__name__)


def make_env(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
    *,
    backend: str = "gym",
    atari_preprocessing: bool = True,
    in_training: bool = False,
) -> gymnasium.Env[Any, Any]:
    """Makes one environment.

    Args:
        env_id: a registered Gymnasium id; `module:Id`, whose module is imported first; EnvPool's id; `module:function`
            of a callable that returns an environment, or a vectorized one if it has a parameter `num_envs`;
            `package:name` of a PettingZoo environment or of a feature (`asyncrl.config.hooks`); or an `EnvMaker`.
        env_kwargs: keyword arguments for the environment.
        render_mode: Gymnasium's render mode.
        backend: `env_backend` of the run; only `envpool` and `tensor` make a difference.
        atari_preprocessing: whether games are wrapped by `asyncrl.envs.atari`.
        in_training: whether wrappers for training only are added.

    Raises:
        UsageError: unknown id, missing package, or unknown arguments.
        EnvironmentFailed: the module that registers the environment raised while it was imported.
        Exception: exceptions of the environment's constructor, unchanged.
    """
    arguments = dict(env_kwargs or {})
    if backend == "envpool":
        if render_mode is not None:
            raise UsageError("Environments of EnvPool cannot be shown or recorded.")
        return SingleEnv(PooledVectorEnv(env_id, arguments, num_envs=1), env_id)
    registered_id = env_id if isinstance(env_id, EnvMaker) else import_registering_module(env_id)
    if _is_preprocessed(registered_id, arguments, atari_preprocessing):
        arguments = atari.inner_kwargs(arguments)
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    make = _find_maker(env_id, registered_id)
    if _makes_several(make):
        return _make_vectorized_only(env_id, arguments, backend)
    if make is not None:
        return _finished(_called(make, env_id, arguments), env_kwargs, atari_preprocessing, in_training)
    with _without_registry_warnings():
        try:
            registered = _find_registered(registered_id)
            if registered is not None and registered.vector_entry_point is None and backend == "tensor":
                raise UsageError(f"{env_id} has no vectorized implementation to use: none is registered.")
            if backend == "tensor" or (registered is not None and registered.entry_point is None):
                return _make_vectorized_only(env_id, arguments, backend)
            if registered is not None and "mujoco" in str(registered.entry_point):
                mujoco.log_warnings_once()
            env = gymnasium.make(registered_id, disable_env_checker=True, **arguments)
            if (of_agents := as_agents_env(env, env_id)) is not None:
                return of_agents
            return _finished(env, env_kwargs, atari_preprocessing, in_training)
        except (gymnasium_error.Error, ImportError, TypeError) as error:
            if (mistake := _mistake_in_making(error, env_id, registered_id, arguments)) is None:
                raise
            raise mistake from error


def _mistake_in_making(
    error: Exception, env_id: str, registered_id: str, arguments: Mapping[str, Any]
) -> UsageError | None:
    """The user's mistake behind an exception of `gymnasium.make`; None if the environment's own code raised it."""
    malformed = str(error).startswith("Malformed environment ID")
    if isinstance(error, (gymnasium_error.UnregisteredEnv, gymnasium_error.DeprecatedEnv)):
        return UnknownEnvironment(_unknown_id(env_id, registered_id))
    if isinstance(error, gymnasium_error.DependencyNotInstalled):
        return UsageError(_missing_package(env_id, error))
    if isinstance(error, ImportError):
        if not _raised_by_gymnasium(error):
            return None
        said = "" if _newest_version(registered_id) is not None else f" Gymnasium says: {error}"
        return UsageError(_unknown_id(env_id, registered_id) + said)
    if isinstance(error, gymnasium_error.Error):
        return UnknownEnvironment(_unknown_id(env_id, registered_id)) if malformed else None
    if str(error).startswith(_NOT_OF_GYMNASIUM):
        return UsageError(_gym_message(env_id))
    registered = _find_registered(registered_id)
    if registered is not None and callable(registered.entry_point):
        _refuse_unknown_arguments(registered.entry_point, env_id, {**registered.kwargs, **arguments})
    named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if named is None or named[1] not in (*arguments, "render_mode"):
        return None
    reason = str(error).partition(" was raised from")[0]  # Gymnasium repeats the id and the arguments
    return UsageError(f"{env_id} does not take these arguments (env_kwargs): {reason}.")


def _finished(
    env: gymnasium.Env[Any, Any], env_kwargs: Mapping[str, Any] | None, atari_preprocessing: bool, in_training: bool
) -> gymnasium.Env[Any, Any]:
    """The environment, or a game with the preprocessing if its frames are raw, whatever id or function has made it."""
    if in_training:
        mujoco.stop_timers()
    if not atari_preprocessing or not atari.has_raw_frames(env) or atari.skipping_wrapper(env) is not None:
        return env
    return atari.preprocessed(env, env_kwargs or {}, in_training)


def _is_preprocessed(registered_id: str, env_kwargs: Mapping[str, Any], atari_preprocessing: bool) -> bool:
    registered = _find_registered(registered_id)
    return atari_preprocessing and atari.is_game(registered) and not atari.observes_memory(registered, env_kwargs)


def _find_registered(registered_id: str) -> EnvSpec | None:
    """The entry of Gymnasium's registry for an id, or for the newest version if the id has none; None if unknown."""
    if registered_id in gymnasium.registry:
        return gymnasium.registry[registered_id]
    return gymnasium.registry.get(_newest_version(registered_id) or "") if "-v" not in registered_id else None


def _newest_version(registered_id: str) -> str | None:
    """The newest id with the name of `registered_id`; None if Gymnasium knows none."""
    try:
        namespace, name, _ = parse_env_id(registered_id)
    except gymnasium_error.Error:
        return None
    newest = find_highest_version(namespace, name)
    return None if newest is None else get_env_id(namespace, name, newest)


def _without_version(registered_id: str) -> str:
    return re.sub(r"-v\d+$", "", registered_id.lower())


def _id_instead(registered_id: str) -> str | None:
    """The id that an unknown one stands for: an older version, another case, a game's earlier id; None if unclear."""
    by_lower = {name.lower(): name for name in gymnasium.registry}
    of_game = (f"ALE/{registered_id}", registered_id.replace("Deterministic", "NoFrameskip"))
    found = [by_lower[name.lower()] for name in (registered_id, *of_game) if name.lower() in by_lower]
    found.append(_newest_version(registered_id) or registered_id)
    return next((name for name in found if name != registered_id), None)


def _called(make: MakesEnv, env_id: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    _refuse_unknown_arguments(make, env_id, arguments)
    env = make(**arguments)
    if isinstance(env, VectorEnv):
        text = f"{env_id} returned {type(env).__name__}, which has several environments: give the function a parameter"
        raise UsageError(f"{text} num_envs, their number, or return one gymnasium.Env.")
    if (of_agents := as_agents_env(env, env_id)) is not None:
        return of_agents
    if not isinstance(env, gymnasium.Env):
        if is_of_gym(env):
            raise UsageError(_gym_message(env_id))
        text = "but a gymnasium.Env or an environment of PettingZoo is expected"
        raise UsageError(f"{env_id} returned {type(env).__name__}, {text}.")
    return env


def _refuse_unknown_arguments(make: MakesEnv, env_id: str, arguments: Mapping[str, Any]) -> None:
    """Raises UsageError if a callable does not take these arguments; of some callables nothing is known."""
    try:
        # A wrapper may take others than the function that it wraps.
        signature = inspect.signature(make, follow_wrapped=False)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{env_id} does not take these arguments (env_kwargs): {error}.") from error


def _find_maker(env_id: str, registered_id: str) -> MakesEnv | None:
    """The callable that makes an environment; None for one of Gymnasium's registry, or if it is not found."""
    if isinstance(env_id, EnvMaker):
        return env_id.make
    if ":" not in env_id or registered_id in gymnasium.registry:
        return None
    module = env_id.partition(":")[0]
    make = find_callable(module, registered_id)
    if make is None and module in (makers := hooks("ENV_MAKERS")):
        make = imported(makers[module])(registered_id)
    return make or find_pettingzoo_maker(module, registered_id)


def _makes_several(make: MakesEnv | None) -> TypeGuard[MakesEnv]:
    """Whether a callable has a parameter `num_envs`, so that it makes a vectorized environment."""
    try:
        return make is not None and "num_envs" in inspect.signature(make).parameters
    except (ValueError, TypeError):  # a callable without a signature
        return False


def _make_vectorized_only(env_id: str, arguments: Mapping[str, Any], backend: str) -> SingleEnv:
    if "render_mode" in arguments:
        raise UsageError(f"{env_id} exists only as a vectorized environment, so it cannot be shown or recorded.")
    vector_env = make_vector_env(env_id, arguments, num_envs=1)
    if (problem := _mode_problem(vector_env)) is not None:
        raise UsageError(f"{env_id} cannot be used: {problem}.")
    if backend == "tensor" or gives_tensors(vector_env):
        from asyncrl.envs.tensors import SingleTensorEnv  # imports torch

        return SingleTensorEnv(vector_env, env_id)
    return SingleEnv(vector_env, env_id)


def make_run_env(
    config: TrainConfig, render_mode: str | None = None, *, in_training: bool = False
) -> gymnasium.Env[Any, Any]:
    """Makes one environment of a run, see `make_env`."""
    return make_env(
        config.env_id,
        config.env_kwargs,
        render_mode,
        backend=config.env_backend,
        atari_preprocessing=config.atari_preprocessing,
        in_training=in_training,
    )


def make_vector_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int, atari_preprocessing: bool = True
) -> VectorEnv[Any, Any, Any]:
    """Makes a vectorized environment: as Gymnasium's `make_vec` for a registered id, else by its callable."""
    arguments = dict(env_kwargs or {})
    registered_id = env_id if isinstance(env_id, EnvMaker) else import_registering_module(env_id)
    if _is_preprocessed(registered_id, arguments, atari_preprocessing):
        arguments = atari.vectorized_kwargs(arguments)
    if _makes_several(make := _find_maker(env_id, registered_id)):
        _refuse_unknown_arguments(make, env_id, {"num_envs": num_envs, **arguments})
        return as_vector_env(make(num_envs=num_envs, **arguments), env_id, num_envs)
    with _without_registry_warnings():
        return gymnasium.make_vec(
            registered_id,
            num_envs=num_envs,
            vectorization_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
            **arguments,
        )


def as_vector_env(env: Any, env_id: str, num_envs: int) -> VectorEnv[Any, Any, Any]:
    """What a callable returned that was called with `num_envs`, wrapped if a feature knows its simulator.

    The package of its class, or of a base class, tells the simulator.

    Raises:
        UsageError: it is not a vectorized environment, or has another number of environments.
    """
    simulators = hooks("SIMULATORS")
    classes = (*type(env).__mro__, *type(getattr(env, "unwrapped", env)).__mro__)
    package = next((name for each in classes if (name := each.__module__.partition(".")[0]) in simulators), None)
    if package is not None:
        _, wrapper, is_single = simulators[package]
        env = imported(wrapper)(env, **({"num_envs": num_envs} if is_single else {}))
    if not isinstance(env, VectorEnv):
        text = f"{env_id} returned {type(env).__name__}, but a gymnasium.vector.VectorEnv is expected"
        known = sorted({name for name, *_ in simulators.values()})
        raise UsageError(f"{text}, or an environment of {', '.join(known)}." if known else f"{text}.")
    if env.num_envs != num_envs:
        raise UsageError(f"{env_id} made {env.num_envs} environments, but num_envs={num_envs} was asked for.")
    return env


def make_run_vector_env(config: TrainConfig, num_envs: int, of_tensors: bool = False) -> VectorEnv[Any, Any, Any]:
    """Makes a vectorized environment of a run; one `of_tensors` takes and gives arrays, but for that of `tensor`."""
    if config.env_backend == "envpool":
        return PooledVectorEnv(config.env_id, config.env_kwargs, num_envs)
    env = make_vector_env(config.env_id, config.env_kwargs, num_envs, config.atari_preprocessing)
    if not of_tensors or config.env_backend == "tensor":
        return env
    from asyncrl.envs.tensors import ArraysOfTensors  # imports torch

    return ArraysOfTensors(env)


def check_vectorized(
    env_id: str, env_kwargs: Mapping[str, Any] | None, env: gymnasium.Env[Any, Any], atari_preprocessing: bool = True
) -> tuple[str | None, bool]:
    """Why the id's vectorized implementation cannot replace `env`, or None; and whether it resets within a step."""
    if not isinstance(env, SingleEnv) and (env.spec is None or env.spec.vector_entry_point is None):
        return "none is registered", False
    try:
        vector_env = make_vector_env(env_id, env_kwargs, 2, atari_preprocessing)
    except ENVIRONMENT_EXCEPTIONS as error:
        return f"it cannot be made: {error}", False
    try:
        spaces = (vector_env.single_observation_space, vector_env.single_action_space)
        if spaces != (env.observation_space, env.action_space):
            return "its spaces differ from those of the single environment", False
        if (problem := _mode_problem(vector_env)) is not None:
            return problem, False
        if gives_tensors(vector_env):
            return "it gives tensors, for which there is --env_backend=tensor", False
        return mask_problem(vector_env), resets_within_step(vector_env)
    finally:
        vector_env.close()


def mask_problem(vector_env: VectorEnv[Any, Any, Any]) -> str | None:
    """Why the environment's action masks cannot be used, or None."""
    mode = vector_env.metadata["autoreset_mode"]
    if mode == AutoresetMode.NEXT_STEP or not has_action_mask(vector_env.single_observation_space):
        return None
    return f"its autoreset mode is {mode.name}, which may apply another observation's mask to an action"


def gives_tensors(vector_env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether observations are tensors; resets the environment, unless PyTorch was never imported."""
    if "torch" not in sys.modules:
        return False
    observation = vector_env.reset()[0]
    while isinstance(observation, (Mapping, tuple)) and observation:
        observation = next(iter(observation.values() if isinstance(observation, Mapping) else observation))
    return isinstance(observation, sys.modules["torch"].Tensor)


def resets_within_step(vector_env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether a vectorized environment is reset before the step after an episode's end (see `EnvSpec`)."""
    return bool(vector_env.metadata["autoreset_mode"] != AutoresetMode.NEXT_STEP)


def _mode_problem(vector_env: VectorEnv[Any, Any, Any]) -> str | None:
    mode = vector_env.metadata.get("autoreset_mode")
    if isinstance(mode, AutoresetMode):
        return None
    return f'its metadata["autoreset_mode"] is {mode!r} and not one of gymnasium.vector.AutoresetMode'


def vector_env_seed(seed: int, env_idx: int, env_steps: int = 0) -> int:
    """Seed of a vectorized environment whose first environment is `env_idx`; arguments as for `env_seed`."""
    return env_seed(seed, env_idx, env_steps) % VECTOR_SEEDS


def env_seed(seed: int, env_idx: int, env_steps: int = 0) -> int:
    """Seed of environment `env_idx` of a run, unrelated to the seeds of other environments and other runs.

    Args:
        seed: the run's.
        env_idx: number of the environment in the run.
        env_steps: environment steps of the run when the environment was made, so a resumed run does not repeat its
            first episodes.
    """
    entropy = [seed, env_idx, env_steps] if env_steps else [seed, env_idx]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def acting_seed(seed: int, actor_idx: int, env_steps: int) -> int:
    """Seed of the exploration of actor `actor_idx`, like `env_seed` but from other numbers than the environments."""
    return env_seed(seed, _ACTING_SEEDS + actor_idx, env_steps)


def import_registering_module(env_id: str) -> str:
    """Imports the module of `module:Id`; returns the id without the module."""
    module, separator, registered_id = env_id.partition(":")
    if not separator:
        module, registered_id = "", env_id
    is_known = registered_id in gymnasium.registry or _newest_version(registered_id) is not None
    if atari.looks_like_game(registered_id) or not (separator or is_known):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")
    if not separator:
        return env_id
    if not module or not registered_id:
        raise UsageError(f"--env={env_id} is not of the form MODULE:Id.")
    try:
        import_user_module(module)
    except UsageError as error:
        install = f" It is installed by: {_INSTALL[module]}" if module in _INSTALL else ""
        package, _, name = module.rpartition(".")
        if package and (near := nearest_pettingzoo_name(package, name)) is not None:
            install = f" The nearest is --env={package}.{near}:{registered_id}."
        raise UsageError(f"--env={env_id}: {error}{install}") from error
    except ENVIRONMENT_EXCEPTIONS as error:
        if type(error) is ImportError and module.startswith("pettingzoo."):  # a family that has moved to a package
            raise UsageError(f"--env={env_id}: {module} cannot be imported: {error}") from error
        text = f"the module {module!r} raised an exception while it was imported"
        raise EnvironmentFailed(f"--env={env_id}: {text}:\n{environment_traceback(error)}") from error
    return registered_id


def _unknown_id(env_id: str, registered_id: str) -> str:
    text = f"Gymnasium knows no environment {registered_id!r}"
    if atari.looks_like_game(registered_id) and importlib.util.find_spec("ale_py") is None:
        return f"{text}; Atari games need: {_INSTALL['ale']}"
    if (instead := _id_instead(registered_id)) is not None:
        prefix = f"{env_id.partition(':')[0]}:" if ":" in env_id else ""
        return f"{text}; what it has is {instead}: give --env={prefix}{instead}."
    if (game := atari.game_of_memory(registered_id)) in gymnasium.registry:
        flags = f"""--env={game} --env_kwargs='{{"obs_type": "ram"}}'"""
        return f"{text}: the memory of a game is observed by {flags}."
    # Names are compared without versions: the same version does not make two names similar.
    known = {_without_version(name): name for name in gymnasium.registry if name != registered_id}
    near = [known[name] for name in nearest_names(_without_version(registered_id), known)]
    nearest = near_hint(near)
    if env_id.startswith("__main__:"):
        name = env_id.rpartition(":")[2]
        return f"{env_id} is known in its script or notebook only: move it to a module, and give --env=MODULE:{name}."
    if ":" not in env_id:
        module, _, name = env_id.rpartition(".")
        with contextlib.suppress(*ENVIRONMENT_EXCEPTIONS):  # of a package that is imported to look into it
            if module and importlib.util.find_spec(module) is not None:
                return f"{text}. For {name} of the module {module}, give --env={module}:{name}."
        return f"{text}{nearest}. If a module of yours registers it, give --env=MODULE:{registered_id}."
    module = env_id.partition(":")[0]
    if registered_id.endswith("()") and find_callable(module, registered_id[:-2]) is not None:
        return f"{env_id} is a call: give its class or function without parentheses, --env={env_id[:-2]}."
    near_name = None if re.search(r"-v\d+$", registered_id) else nearest_pettingzoo_name(module, registered_id)
    if near_name is not None:
        return f"{module} has no {registered_id!r}; the nearest is --env={module}:{near_name}."
    if module == "pettingzoo" and registered_id.startswith("simple"):
        return f"{module} has no {registered_id!r}: its MPE is the package mpe2 ({_INSTALL['mpe2']}), --env=mpe2:NAME."
    found = find_object(module, registered_id)
    if found is not None:
        return (
            f"{env_id} is an object of {type(found).__name__}: give its class or a function that makes it, because a "
            "run makes many environments."
        )
    if re.search(r"-v\d+$", registered_id) is None:
        hint = nearest_hint(registered_id, [*near, *(name for name in vars(sys.modules[module]) if name[0] != "_")])
        return f"{module} has no {registered_id!r}, and registers no environment of that name{hint}."
    return f"{text} after importing {module!r}{nearest}. Does that module register it?"


def _gym_message(env_id: str) -> str:
    return (
        f"{env_id} is not an environment of Gymnasium: its class must inherit from gymnasium.Env and have spaces of "
        "gymnasium.spaces, not those of the package gym."
    )


def _missing_package(env_id: str, error: Exception) -> str:
    text = str(error).lower()
    for package, command in _INSTALL.items():
        if package in text:
            return f"{env_id} needs a package that is not installed ({package}): {command}"
    return f"{env_id} needs a package that is not installed: {error}"


def _raised_by_gymnasium(error: ImportError) -> bool:
    """Whether Gymnasium raised, as it does for ids that it has removed, and not a failed import."""
    frames = traceback.extract_tb(error.__traceback__)
    package = os.path.dirname(gymnasium.__file__)
    return type(error) is ImportError and bool(frames) and frames[-1].filename.startswith(package)


@contextlib.contextmanager
def _without_registry_warnings() -> Iterator[None]:
    """Silences Gymnasium's warnings about versions, which every environment of every worker would repeat."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"gymnasium\.envs\.registration")
        yield

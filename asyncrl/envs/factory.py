"""Makes and seeds environments; a wrong id, wrong arguments or a missing package raise one sentence."""

from __future__ import annotations

import contextlib
import difflib
import functools
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
from typing import Any

import gymnasium
import numpy as np
from gymnasium import error as gymnasium_error
from gymnasium.vector import AutoresetMode, VectorEnv

from asyncrl.config.env_maker import EnvMaker, MakesEnv, find_callable, find_object
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest_hint
from asyncrl.config.schema import TrainConfig
from asyncrl.config.user_modules import import_user_module
from asyncrl.envs import atari
from asyncrl.envs.agents import as_agents_env, find_pettingzoo_maker
from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS, EnvironmentFailed, UnknownEnvironment, environment_traceback
from asyncrl.envs.pooled import PooledVectorEnv
from asyncrl.envs.single import VECTOR_SEEDS, SingleEnv
from asyncrl.envs.spaces import has_action_mask, is_of_gym
from asyncrl.integrations import as_vector_env, find_simulator

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
            `package:name` of a PettingZoo environment or of a simulator (`asyncrl.integrations`); or an `EnvMaker`.
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
    is_preprocessed = atari_preprocessing and atari.is_atari(env_id)
    if is_preprocessed:
        arguments = atari.inner_kwargs(arguments)
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    registered_id = env_id if isinstance(env_id, EnvMaker) else _import_registering_module(env_id)
    if _find_vector_maker(env_id, registered_id) is not None:
        return _make_vectorized_only(env_id, arguments, backend)
    if isinstance(env_id, EnvMaker):
        return _called(env_id.make, env_id, arguments)
    module, is_named, _ = env_id.partition(":")
    if is_named and registered_id not in gymnasium.registry:
        make = find_callable(module, registered_id) or find_pettingzoo_maker(module, registered_id)
        if make is not None:
            return _called(make, env_id, arguments)
    with _without_registry_warnings():
        try:
            registered = gymnasium.registry.get(registered_id)
            if registered is not None and registered.vector_entry_point is None and backend == "tensor":
                raise UsageError(f"{env_id} has no vectorized implementation to use: none is registered.")
            if backend == "tensor" or (registered is not None and registered.entry_point is None):
                return _make_vectorized_only(env_id, arguments, backend)
            if registered is not None and "mujoco" in str(registered.entry_point):
                _log_mujoco_warnings_once()
            env = gymnasium.make(registered_id, disable_env_checker=True, **arguments)
            if (of_agents := as_agents_env(env, env_id)) is not None:
                return of_agents
            return atari.preprocessed(env, env_kwargs or {}, in_training) if is_preprocessed else env
        except gymnasium_error.UnregisteredEnv as error:
            raise UnknownEnvironment(_unknown_id(env_id, registered_id)) from error
        except gymnasium_error.DependencyNotInstalled as error:
            raise UsageError(_missing_package(env_id, error)) from error
        except ImportError as error:
            if not _raised_by_gymnasium(error):
                raise
            raise UsageError(f"{_unknown_id(env_id, registered_id)} Gymnasium says: {error}") from error
        except gymnasium_error.Error as error:
            if not str(error).startswith("Malformed environment ID"):
                raise
            raise UnknownEnvironment(_unknown_id(env_id, registered_id)) from error
        except TypeError as error:
            if str(error).startswith(_NOT_OF_GYMNASIUM):
                raise UsageError(_of_gym(env_id)) from error
            if registered is not None and callable(registered.entry_point):
                _refuse_unknown_arguments(registered.entry_point, env_id, {**registered.kwargs, **arguments})
            named = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            if named is None or named[1] not in (*arguments, "render_mode"):
                raise
            reason = str(error).partition(" was raised from")[0]  # Gymnasium repeats the id and the arguments
            raise UsageError(f"{env_id} does not take these arguments (env_kwargs): {reason}.") from error


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
            raise UsageError(_of_gym(env_id))
        text = (
            f"{env_id} returned {type(env).__name__}, but a gymnasium.Env or an environment of PettingZoo is expected."
        )
        raise UsageError(text)
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


def _find_vector_maker(env_id: str, registered_id: str) -> MakesEnv | None:
    """The callable with a parameter `num_envs` that makes a vectorized environment; None if it is not found."""
    make: MakesEnv | None = None
    if isinstance(env_id, EnvMaker):
        make = env_id.make
    elif ":" in env_id and registered_id not in gymnasium.registry:
        module = env_id.partition(":")[0]
        make = find_callable(module, registered_id) or find_simulator(module, registered_id)
    if make is None:
        return None
    try:
        return make if "num_envs" in inspect.signature(make).parameters else None
    except (ValueError, TypeError):  # a callable without a signature
        return None


def _make_vectorized_only(env_id: str, arguments: Mapping[str, Any], backend: str) -> SingleEnv:
    if "render_mode" in arguments:
        raise UsageError(f"{env_id} exists only as a vectorized environment, so it cannot be shown or recorded.")
    vector_env = make_vector_env(env_id, arguments, num_envs=1)
    if (problem := _problem_of_mode(vector_env)) is not None:
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
        atari_preprocessing=config.preprocesses_atari,
        in_training=in_training,
    )


def make_vector_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None, num_envs: int, atari_preprocessing: bool = True
) -> VectorEnv[Any, Any, Any]:
    """Makes a vectorized environment: as Gymnasium's `make_vec` for a registered id, else by its callable."""
    arguments = dict(env_kwargs or {})
    if atari_preprocessing and atari.is_atari(env_id):
        arguments = atari.vectorized_kwargs(arguments)
    registered_id = env_id if isinstance(env_id, EnvMaker) else _import_registering_module(env_id)
    if (make := _find_vector_maker(env_id, registered_id)) is not None:
        _refuse_unknown_arguments(make, env_id, {"num_envs": num_envs, **arguments})
        return as_vector_env(make(num_envs=num_envs, **arguments), env_id, num_envs)
    with _without_registry_warnings():
        return gymnasium.make_vec(
            registered_id,
            num_envs=num_envs,
            vectorization_mode=gymnasium.VectorizeMode.VECTOR_ENTRY_POINT,
            **arguments,
        )


def make_run_vector_env(config: TrainConfig, num_envs: int, of_tensors: bool = False) -> VectorEnv[Any, Any, Any]:
    """Makes a vectorized environment of a run; one `of_tensors` takes and gives arrays, but for that of `tensor`."""
    if config.env_backend == "envpool":
        return PooledVectorEnv(config.env_id, config.env_kwargs, num_envs)
    env = make_vector_env(config.env_id, config.env_kwargs, num_envs, config.preprocesses_atari)
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
        if (problem := _problem_of_mode(vector_env)) is not None:
            return problem, False
        if gives_tensors(vector_env):
            return "it gives tensors, for which there is --env_backend=tensor", False
        return problem_of_mask(vector_env), resets_within_step(vector_env)
    finally:
        vector_env.close()


def problem_of_mask(vector_env: VectorEnv[Any, Any, Any]) -> str | None:
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


def _problem_of_mode(vector_env: VectorEnv[Any, Any, Any]) -> str | None:
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


def _import_registering_module(env_id: str) -> str:
    """Imports the module of `module:Id`; returns the id without the module."""
    if atari.is_atari(env_id):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")
    module, separator, registered_id = env_id.partition(":")
    if not separator:
        return env_id
    if not module or not registered_id:
        raise UsageError(f"--env={env_id} is not of the form MODULE:Id.")
    try:
        import_user_module(module)
    except UsageError as error:
        install = f" It is installed by: {_INSTALL[module]}" if module in _INSTALL else ""
        raise UsageError(f"--env={env_id}: {error}{install}") from error
    except ENVIRONMENT_EXCEPTIONS as error:
        text = f"the module {module!r} raised an exception while it was imported"
        raise EnvironmentFailed(f"--env={env_id}: {text}:\n{environment_traceback(error)}") from error
    return registered_id


def _unknown_id(env_id: str, registered_id: str) -> str:
    text = f"Gymnasium knows no environment {registered_id!r}"
    if atari.is_atari(registered_id) and importlib.util.find_spec("ale_py") is None:
        return f"{text}; Atari games need: {_INSTALL['ale']}"
    known = [name for name in gymnasium.registry if name != registered_id]
    near = difflib.get_close_matches(registered_id, known, n=3, cutoff=0.6)
    if not near:
        by_lower = {name.lower(): name for name in known}
        near = [by_lower[name] for name in difflib.get_close_matches(registered_id.lower(), by_lower, n=3, cutoff=0.6)]
    nearest = f"; the nearest are {', '.join(near)}" if near else ""
    if env_id.startswith("__main__:"):
        name = env_id.rpartition(":")[2]
        return f"{env_id} is known in its script or notebook only: move it to a module, and give --env=MODULE:{name}."
    if ":" not in env_id:
        return f"{text}{nearest}. If a module of yours registers it, give --env=MODULE:{registered_id}."
    module = env_id.partition(":")[0]
    if registered_id.endswith("()") and find_callable(module, registered_id[:-2]) is not None:
        return f"{env_id} is a call: give its class or function without parentheses, --env={env_id[:-2]}."
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


def _of_gym(env_id: str) -> str:
    return (
        f"{env_id} is no environment of Gymnasium: its class must inherit from gymnasium.Env and have spaces of "
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


@functools.cache
def _log_mujoco_warnings_once() -> None:
    """Logs each of MuJoCo's warnings once; it prints one for each model, and writes a file in the working directory."""
    if importlib.util.find_spec("mujoco") is None:
        return
    import mujoco

    @functools.lru_cache(maxsize=100)
    def show(text: str) -> None:
        log.warning("MuJoCo: %s", text)

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(lambda text: show(text.partition(" Time = ")[0]))

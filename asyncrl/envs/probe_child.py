"""Examines an environment in the child process that `probe` starts.

Reads a request from standard input and writes answers as lines of JSON: the spaces or the failure, then the findings of
Gymnasium's checker. An environment that fails now and then can be trained, so it is made again after a failure.
"""

from __future__ import annotations

import base64
import bdb
import contextlib
import dataclasses
import faulthandler
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium

from asyncrl.config.env_maker import unpickled
from asyncrl.config.errors import UsageError
from asyncrl.config.hooks import load
from asyncrl.config.value_types import ImageChannels
from asyncrl.envs import atari
from asyncrl.envs.errors import (
    ENVIRONMENT_EXCEPTIONS,
    FATAL_IN_A_ROW,
    EnvironmentFailed,
    UnknownEnvironment,
    environment_traceback,
    kind_of,
)
from asyncrl.envs.factory import (
    check_vectorized,
    import_registering_module,
    make_env,
    mask_problem,
    resets_within_step,
)
from asyncrl.envs.interface import (
    RoundingCheck,
    checker_findings,
    default_reward_shaping,
    takes_training_info,
    try_out,
    wrapper_findings,
)
from asyncrl.envs.masks import UnreadMasks
from asyncrl.envs.registry import environment_inside
from asyncrl.envs.single import SingleEnv
from asyncrl.envs.spaces import read_spec, seed_spaces
from asyncrl.envs.spec import EnvSpec
from asyncrl.processes.ending import end_process
from asyncrl.processes.lifeline import end_with
from asyncrl.processes.seeding import role_seed, seed_global_generators

_SLOW_S = 5.0
_MOST_ATTEMPTS = 10


@dataclasses.dataclass
class _Examination:
    """What is asked about an environment, as `probe` has it, and what was found so far.

    Attributes:
        findings: sentences for the user.
        retried: a sentence about each failure after which the environment was made again.
        raised_in: the method that was called last.
    """

    env_id: str
    maker: str | None
    env_kwargs: Mapping[str, Any]
    env_backend: str
    atari_preprocessing: bool
    image_channels: ImageChannels
    image_keys: Sequence[str]
    examine: str | None
    seed: int
    is_checked: bool
    findings: list[str] = dataclasses.field(default_factory=list)
    retried: list[str] = dataclasses.field(default_factory=list)
    raised_in: str = ""

    def answers(self) -> Iterator[Any]:
        """Yields JSON values: the answer, then the findings of the checker."""
        failures: list[tuple[object, ...]] = []
        began = time.monotonic()
        while True:
            env = None
            try:
                env = self._make_first(len(failures))
                spec = self._examine(env, len(failures))
                break
            except UsageError as error:
                is_unknown = isinstance(error, UnknownEnvironment)
                yield self._refusal("unknown_environment" if is_unknown else "usage_error", str(error))
                return
            except EnvironmentFailed as error:
                yield self._refusal("failure", str(error))
                return
            except ImportError as error:
                text = f"{self.env_id} needs a module that cannot be imported:\n{environment_traceback(error)}"
                yield self._refusal("failure", text)
                return
            except ENVIRONMENT_EXCEPTIONS as error:
                # Only what fails again in the same way is fatal.
                kind = kind_of(error)
                is_fatal = isinstance(error, (SystemExit, bdb.BdbQuit)) or time.monotonic() - began > _SLOW_S
                if is_fatal or failures.count(kind) == FATAL_IN_A_ROW - 1 or len(failures) == _MOST_ATTEMPTS:
                    text = f"{self.env_id} raised an exception in {self.raised_in}:\n{environment_traceback(error)}"
                    yield self._refusal("failure", text)
                    return
                failures.append(kind)
                if env is not None:
                    with contextlib.suppress(*ENVIRONMENT_EXCEPTIONS):
                        env.close()
                text = f"it raised {type(error).__name__} ({error}) in {self.raised_in}, and a new one did not"
                self.retried.append(text)
        findings = [*self.retried, *wrapper_findings(env), *self._raw_frames(env), *self.findings]
        yield {"spec": spec.to_data(), "findings": list(dict.fromkeys(findings))}
        if self.is_checked:
            try:
                env = self._make()
            except ENVIRONMENT_EXCEPTIONS:
                if not self.retried:
                    raise
            else:
                yield checker_findings(env)

    def _refusal(self, kind: str, text: str) -> dict[str, Any]:
        return {kind: text, "findings": self.findings}

    def _enter(self, method: str) -> None:
        self.raised_in = method

    def _make_first(self, attempt: int) -> gymnasium.Env[Any, Any]:
        """Imports the environment's module and makes the environment, with random numbers of this attempt."""
        self._enter("its module or when it was made")
        seed_global_generators(role_seed(self.seed, "probe", 3 * attempt))
        if self.maker is not None:
            self.env_id = unpickled(base64.b64decode(self.maker))
        elif ":" in self.env_id:
            import_registering_module(self.env_id)
        # Again, because the module may have imported PyTorch, whose generator is seeded, too.
        seed_global_generators(role_seed(self.seed, "probe", 3 * attempt + 1))
        return self._make()

    def _make(self) -> gymnasium.Env[Any, Any]:
        return make_env(
            self.env_id, self.env_kwargs, backend=self.env_backend, atari_preprocessing=self.atari_preprocessing
        )

    def _examine(self, env: gymnasium.Env[Any, Any], attempt: int) -> EnvSpec:
        """Resets, steps and closes the environment.

        Raises:
            UsageError: a run cannot use it.
        """
        spec = read_spec(env, self.env_id, self.image_channels, self.image_keys)
        seed_spaces(env, role_seed(self.seed, "probe", 3 * attempt + 2))
        masks, rounding = UnreadMasks(spec), RoundingCheck(spec)
        try:
            try_out(env, spec, self._enter, [masks.look, rounding.look], attempt)
        finally:
            masks.look_at_methods(env)
            self.findings += masks.findings + rounding.findings
        spec = self._with_backend(env, spec)
        made_of, keeps_spaces = environment_inside(env)
        spec = dataclasses.replace(
            spec, takes_training_info=takes_training_info(env), made_of=made_of, keeps_spaces=keeps_spaces
        )
        if isinstance(env, atari.Preprocessed):
            spec = dataclasses.replace(spec, frames_per_step=env.frames_per_step)
        self._enter("get_default_reward_shaping()")
        spec = dataclasses.replace(spec, reward_shaping=default_reward_shaping(env, str(self.env_id)))
        if self.examine is not None:
            self.findings += load(self.examine)(env, spec, str(self.env_id), self._enter)
        self._enter("close()")
        env.close()
        return spec

    def _with_backend(self, env: gymnasium.Env[Any, Any], spec: EnvSpec) -> EnvSpec:
        """The spec with how a vectorized implementation is used.

        Raises:
            UsageError: `env_backend` does not fit the environment.
        """
        backend, single = self.env_backend, env if isinstance(env, SingleEnv) else None
        gives_tensors = single is not None and single.gives_tensors
        if single is not None and gives_tensors:
            if backend not in ("auto", "tensor", "gym_vector"):
                text = f"{self.env_id} gives tensors: --env_backend is auto, tensor or gym_vector for it"
                raise UsageError(f"{text}, not {backend}.")
            if (problem := mask_problem(single.vector_env)) is not None:
                raise UsageError(f"{self.env_id} cannot be used: {problem}.")
        if backend == "envpool" or gives_tensors:
            spec = dataclasses.replace(spec, is_vectorized=True, gives_tensors=gives_tensors)
        elif backend == "gym" and single is not None:
            raise UsageError(f"{self.env_id} exists only as a vectorized environment: give --env_backend=gym_vector.")
        elif backend != "gym":
            obstacle, resets = check_vectorized(self.env_id, self.env_kwargs, env, self.atari_preprocessing)
            if obstacle is not None and (backend == "gym_vector" or single is not None):
                raise UsageError(f"{self.env_id} has no vectorized implementation to use: {obstacle}.")
            spec = dataclasses.replace(spec, is_vectorized=obstacle is None, resets_within_step=resets)
        if single is not None:
            spec = dataclasses.replace(spec, resets_within_step=resets_within_step(single.vector_env))
        return spec

    def _raw_frames(self, env: gymnasium.Env[Any, Any]) -> list[str]:
        """Why a game's frames are not preprocessed although the run does so."""
        if not self.atari_preprocessing or not atari.has_raw_frames(env):
            return []
        if (name := atari.skipping_wrapper(env)) is None:
            return []
        text = f"the frames of the game are not preprocessed, because step() of {name} may skip frames itself"
        return [f"{text}: return the game without {name}, or leave the frames unchanged by --atari_preprocessing=False"]


def _main(answer_descriptor: int) -> None:
    request = json.load(sys.stdin)
    sys.path[:] = request.pop("search_path")  # without the working directory at the front, where `python -m` puts it
    stacks_in_s = request.pop("stacks_at") - time.monotonic()
    if stacks_in_s > 0.0:
        faulthandler.dump_traceback_later(min(stacks_in_s, threading.TIMEOUT_MAX))
    with open(answer_descriptor, "w", encoding="utf-8") as answer_file:
        for answer in _Examination(**request).answers():
            answer_file.write(json.dumps(answer) + "\n")
            answer_file.flush()


if __name__ == "__main__":
    answers, *lifeline = map(int, sys.argv[1:])
    end_with(*lifeline)
    _main(answers)
    end_process(0)

"""The environment's spaces, found in another process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from gymnasium.spaces import Discrete
from layouts import vector_observation

import asyncrl
from asyncrl.config.errors import UsageError
from asyncrl.envs import probe as probe_module
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.envs.factory import make_env
from asyncrl.envs.probe import probe
from asyncrl.envs.spec import BoxAction, DiscreteAction, EnvSpec
from asyncrl.processes.main_guard import NO_MAIN_GUARD

pytestmark = pytest.mark.usefixtures("fresh_probes")

PACKAGE = f'"{Path(asyncrl.__file__).parent}/'

MODULE = """
import atexit, ctypes, os, subprocess, sys, threading, time
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

class ProbedEnv(gymnasium.Env):
    spaces = {
        "flat": Box(-np.inf, np.inf, (3,), np.float64), "whole": Box(0, 255, (3,), np.uint8),
        "choice": Discrete(3, start=2), "partly": Box(np.float32([-1, -np.inf]), np.float32([1, np.inf])),
        "square": Box(-2, 6, (2, 2), np.float64),
    }
    def __init__(self, obs="flat", action="choice", trouble=None):
        self.observation_space, self.action_space = self.spaces[obs], self.spaces[action]
        if trouble in ("observation_space", "action_space"):
            delattr(self, trouble)
        self.trouble = trouble
    def reset(self, seed=None, options=None):
        print("a line on stdout", flush=True)
        os.write(1, b'{"spec": 1}\\n')
        if self.trouble == "die":
            print("last words", flush=True)
            os._exit(7)
        if self.trouble == "crash":
            print("opening the device")
            ctypes.string_at(0)
        if self.trouble == "hang":
            print("looking for the device")
            helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            with open("helper.unfinished", "w") as file:
                file.write(str(helper.pid))
            os.rename("helper.unfinished", "helper")
            ctypes.PyDLL(None).sleep(600)  # no other thread can run meanwhile
        if self.trouble == "thread":
            threading.Thread(target=time.sleep, args=(600,)).start()
            atexit.register(open, "cleaned_up", "w")
        if self.trouble == "debugger":
            breakpoint()
        return np.zeros(self.observation_space.shape), {}
    def step(self, action):
        return np.zeros(self.observation_space.shape), 0.0, False, False, {}

class Returns(gymnasium.Env):
    # Its methods return what `returned` says: Python expressions.
    observation_space, action_space = Box(-1.0, 1.0, (3,)), Discrete(2)
    def __init__(self, reset="obs, {}", step="obs, 0.0, False, False, {}", at=1):
        self.returned = {"reset": reset, "step": step}
        self.at = at
        self.steps = 0
    def answer(self, text):
        return eval(text, {"obs": np.zeros(3, np.float32), "np": np})
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.answer(self.returned["reset"])
    def step(self, action):
        self.steps += 1
        return self.answer(self.returned["step"] if self.steps == self.at else "obs, 0.0, False, False, {}")

class Unseeded(Returns):
    def reset(self):
        return self.answer("obs, {}")

class Careless(Returns):
    # The checker has something to say of it: `reset` ignores its seed.
    def reset(self, seed=None, options=None):
        return self.answer("obs, {}")

class Masked(Returns):
    observation_space = gymnasium.spaces.Dict(
        {"action_mask": Box(0, 1, (2,), np.int8), "seen": Box(-1.0, 1.0, (3,))}
    )
    def reset(self, seed=None, options=None):
        return {"action_mask": np.array([0, 1], np.int8), "seen": np.zeros(3, np.float32)}, {}
    def step(self, action):
        if action != 1:
            raise ValueError("forbidden")
        return self.reset()[0], 0.0, False, False, {}

def normalized_single():
    wrappers = gymnasium.wrappers
    return wrappers.TimeLimit(wrappers.NormalizeReward(wrappers.NormalizeObservation(Returns())), 50)

def normalized_vectorized(num_envs):
    wrappers = gymnasium.wrappers.vector
    env = gymnasium.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    return wrappers.NormalizeReward(wrappers.NormalizeObservation(env))

for kind in (Returns, Unseeded, Careless, Masked):
    gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=50)
gymnasium.register("Probed-v0", ProbedEnv, max_episode_steps=77)
gymnasium.register("Absent-v0", "module_that_is_absent:Env")
"""


WORLD = """
import gymnasium
from gymnasium.spaces import Box, Discrete

class World(gymnasium.Env):
    observation_space, action_space = Box(-1.0, 1.0, (1,)), Discrete({num_actions})
    def reset(self, seed=None, options=None):
        return self.observation_space.low, {{}}
    def step(self, action):
        return self.observation_space.low, 0.0, False, False, {{}}
"""


@pytest.mark.parametrize(
    ("path", "num_actions"),
    [(["installed"], 3), (["installed", "project"], 2), (["project", "installed"], 3)],
)
def test_the_probe_imports_the_module_that_this_process_would_import(
    path: list[str], num_actions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, number in (("installed", 2), ("project", 3)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "world_that_is_there_twice.py").write_text(WORLD.format(num_actions=number))
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setattr(sys, "path", [*(str(tmp_path / folder) for folder in path), *filter(None, sys.path)])
    assert probe("world_that_is_there_twice:World").action == DiscreteAction(num_actions, 0)
    try:
        made = make_env("world_that_is_there_twice:World")
        assert made.action_space == Discrete(num_actions)
    finally:
        sys.modules.pop("world_that_is_there_twice", None)


@pytest.fixture
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "probed_module.py").write_text(MODULE)
    # Like a user's: only the working directory, which `python -m` puts first, leads to the module.
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "probed_module", raising=False)
    return "probed_module:Probed-v0"


@pytest.mark.usefixtures("probes_here")
def test_spaces_and_time_limit_are_read_although_the_environment_prints(probed: str) -> None:
    expected = EnvSpec(probed, vector_observation(3, "float64"), DiscreteAction(n=3, start=2), 77, made_of="Probed-v0")
    assert probe(probed) == expected


@pytest.mark.usefixtures("probes_here")
def test_box_actions_keep_shape_dtype_and_infinite_bounds(probed: str) -> None:
    inf = float("inf")
    partly = probe(probed, {"obs": "whole", "action": "partly"})
    assert partly.observation == vector_observation(3, "uint8")
    assert partly.action == BoxAction((2,), (-1.0, -inf), (1.0, inf), "float32")
    assert probe(probed, {"action": "square"}).action == BoxAction((2, 2), (-2.0,) * 4, (6.0,) * 4, "float64")


@pytest.mark.usefixtures("probes_here")
@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_a_space_that_is_not_set_is_named(probed: str, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        probe(probed, {"trouble": name})
    assert str(caught.value) == f"{probed} has no {name}: set it in `__init__`."


@pytest.mark.usefixtures("probes_here")
@pytest.mark.parametrize(
    ("env_kwargs", "sentence"),
    [
        (
            {"step": "obs, 0.0, False, {}"},
            r"step\(\) returned 4 values \(ndarray, float, bool, dict\); Gymnasium expects 5 values: observation, "
            r"reward, terminated, truncated, info\. The older interface has one value, done",
        ),
        ({"step": "obs"}, r"step\(\) returned one ndarray; Gymnasium expects 5 values"),
        ({"step": "obs, None, False, False, {}"}, r"step\(\) returned reward = 'None'; Gymnasium expects a number"),
        ({"step": "obs, obs[:1], False, False, {}"}, r"step\(\) returned reward = .*; Gymnasium expects a number"),
        ({"step": "obs, 0.0, False, {}, {}"}, r"step\(\) returned truncated = '{}'; Gymnasium expects True or False"),
        ({"step": "obs, 0.0, False, False, None"}, r"step\(\) returned info = 'None'; Gymnasium expects a dict"),
        (
            {"step": "obs[:2], 0.0, False, False, {}", "at": 3},
            r"from step\(\) that does not match its observation_space",
        ),
        ({"reset": "np.zeros(5), {}"}, r"shape \(5,\).*promises shape \(3,\)"),
        ({"reset": "obs"}, r"reset\(\) returned one ndarray; Gymnasium expects \(observation, info dict\)"),
    ],
)
def test_an_environment_unlike_gymnasiums_interface_is_told_what_that_is(
    probed: str, env_kwargs: dict[str, str], sentence: str
) -> None:
    with pytest.raises(UsageError, match=f"^probed_module:Returns-v0.*{sentence}") as caught:
        probe("probed_module:Returns-v0", env_kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "env_kwargs"),
    [
        ("Returns-v0", {"step": "obs, 0.0, np.int64(0), np.array(False), {}"}),  # flags of NumPy's types
        ("Returns-v0", {"step": "None, 1.0, True, False, {}"}),  # an episode may end without an observation
        ("Masked-v0", {}),  # takes only actions that its mask allows
        ("Probed-v0", {"trouble": "debugger"}),  # a breakpoint is for the run
    ],
)
def test_environments_that_can_be_trained_pass(probed: str, name: str, env_kwargs: dict[str, Any]) -> None:
    assert probe(f"probed_module:{name}", env_kwargs).max_episode_steps == (77 if name == "Probed-v0" else 50)


@pytest.mark.usefixtures("probes_here")
def test_a_reset_without_a_seed_is_told_the_signature(probed: str) -> None:
    with pytest.raises(UsageError, match=r"reset\(\) does not take a seed; Gymnasium calls reset\(seed="):
        probe("probed_module:Unseeded-v0")


@pytest.mark.usefixtures("probes_here")
@pytest.mark.parametrize(
    ("env_kwargs", "place", "error"),
    [
        ({"step": "exit()", "at": 2}, "step", "SystemExit: None"),
        ({"reset": "exit()"}, "reset", "SystemExit: None"),
        ({"step": "1 / 0", "at": 2}, "step", "ZeroDivisionError: division by zero"),
        ({"reset": "1 / 0"}, "reset", "ZeroDivisionError: division by zero"),
    ],
)
def test_an_exception_is_shown_once_with_its_method_and_the_environments_own_lines(
    probed: str, env_kwargs: dict[str, Any], place: str, error: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=rf"raised an exception in {place}\(\):\n(.*\n)*{error}$") as caught:
        probe("probed_module:Returns-v0", env_kwargs)
    text = str(caught.value)
    assert text.count(error) == 1 and "probed_module.py" in text and PACKAGE not in text


@pytest.mark.usefixtures("probes_here")
def test_findings_of_gymnasiums_checker_are_warnings(probed: str) -> None:
    said: list[str] = []
    probe("probed_module:Careless-v0", warn=said.append)
    assert len(said) == 1
    assert "check_env on probed_module:Careless-v0: " in said[0] and "super().reset(seed=seed)" in said[0]
    said.clear()
    clean: list[str] = []
    # The environments of Gymnasium, and those with masks, are not checked.
    for fine, is_checked in (
        ("probed_module:Returns-v0", True),
        ("probed_module:Masked-v0", False),
        ("Pendulum-v1", False),
    ):
        clean.clear()
        probe(fine, warn=said.append, on_clean=lambda: clean.append("clean"))
        assert bool(clean) == is_checked
    assert said == []


@pytest.mark.usefixtures("probes_here")
def test_wrappers_that_normalize_are_found_in_the_chain(probed: str) -> None:
    said: list[str] = []
    for name in ("single", "vectorized"):
        probe(f"probed_module:normalized_{name}", env_backend="auto", advise=said.append)
        observation, reward = said
        assert observation == (
            f"probed_module:normalized_{name}: NormalizeObservation keeps statistics of its own in each environment "
            "and they are not saved: leave it out, --normalize_input does this."
        )
        assert "NormalizeReward keeps" in reward and "--normalize_returns does this" in reward
        said.clear()
    probe("CartPole-v1", advise=said.append)
    assert said == []


def test_a_module_that_cannot_be_imported_is_said_to_be_that(probed: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        probe("probed_module:Absent-v0")
    assert "Absent-v0 needs a module that cannot be imported:\n" in str(caught.value)
    assert "No module named 'module_that_is_absent'" in str(caught.value)
    (tmp_path / "broken_module.py").write_text("import module_that_is_absent")
    with pytest.raises(EnvironmentFailed) as caught:
        probe("broken_module:Probed-v0")
    first, *rest = str(caught.value).splitlines()
    assert first.endswith("the module 'broken_module' raised an exception while it was imported:")
    assert "reset" not in first
    (frame,) = (line for line in rest if "File" in line)
    assert str(tmp_path / "broken_module.py") in frame


@pytest.mark.parametrize(
    "starts_a_run",
    [
        "from asyncrl import TrainConfig, Trainer\nTrainer(TrainConfig(env='unguarded_module:Probed-v0')).run()\n",
        "from asyncrl import train\ntrain.main(['--env=unguarded_module:Probed-v0'])\n",
    ],
    ids=["Trainer", "train"],
)
def test_a_module_that_trains_when_it_is_imported_is_told_the_main_guard(
    starts_a_run: str, probed: str, tmp_path: Path
) -> None:
    (tmp_path / "unguarded_module.py").write_text(MODULE + starts_a_run)
    with pytest.raises(UsageError) as caught:
        probe("unguarded_module:Probed-v0")
    assert str(caught.value) == f"--env=unguarded_module:Probed-v0: {NO_MAIN_GUARD}"
    assert not (tmp_path / "train_dir").exists()


def test_a_thread_that_the_environment_leaves_does_not_delay_the_answer(
    probed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exit_codes = []
    wait = probe_module._wait
    monkeypatch.setattr(probe_module, "_wait", lambda *given: exit_codes.append(wait(*given)) or exit_codes[-1])
    assert probe(probed, {"trouble": "thread"}, timeout_s=60.0).max_episode_steps == 77
    assert exit_codes == [0]
    assert (tmp_path / "cleaned_up").exists()


def test_a_process_that_dies_is_reported_with_its_last_output(probed: str) -> None:
    with pytest.raises(EnvironmentFailed, match=r"(?s)exit code 7.*last words"):
        probe(probed, {"trouble": "die"})


def test_a_crash_is_reported_with_the_output_before_it_and_its_place(
    probed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with pytest.raises(EnvironmentFailed) as caught:
        probe(probed, {"trouble": "crash"})
    text = str(caught.value)
    assert "SIGSEGV" in text and "opening the device" in text
    assert re.search(r'probed_module.py", line \d+ in reset', text)
    assert PACKAGE not in text and text.count("hread 0x") == 1


def test_an_environment_that_hangs_is_given_up_with_its_output_and_the_place(
    probed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    for timeout_s in (3.0, 12.0, 60.0):  # until it comes that far before its time is up
        with pytest.raises(EnvironmentFailed, match=f"not made, reset and stepped within {timeout_s:g} s; ") as caught:
            probe(probed, {"trouble": "hang"}, timeout_s=timeout_s)
        text = str(caught.value)
        if "in reset" in text:
            break
    assert "--env_start_timeout; its last output:\na line on stdout\n" in text and "looking for the device" in text
    assert re.search(r'probed_module.py", line \d+ in reset', text)
    assert PACKAGE not in text and text.count("hread 0x") == 1


@pytest.mark.parametrize(("slow_s", "num_said"), [(0.0, 1), (1000.0, 0)])
def test_a_check_that_takes_long_is_said_once(
    slow_s: float, num_said: int, probed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_module, "_SLOW_S", slow_s)
    said: list[str] = []
    probe(probed, timeout_s=200.0, say=said.append)
    text = f"Checking {probed}: it has 200 s to be made, reset and stepped (--env_start_timeout)."
    assert said == [text] * num_said


def test_neither_processes_nor_files_outlive_the_one_that_asks(probed: str, tmp_path: Path) -> None:
    program = f"from asyncrl.envs.probe import probe; probe({probed!r}, {{'trouble': 'hang'}}, timeout_s=600)"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    asking = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(temporary)})
    while not (tmp_path / "helper").exists():
        assert asking.poll() is None
        time.sleep(0.01)
    processes = [*psutil.Process(asking.pid).children(recursive=True)]
    assert int((tmp_path / "helper").read_text()) in {process.pid for process in processes}
    asking.kill()
    asking.wait()
    assert psutil.wait_procs(processes, timeout=10.0)[1] == []
    assert list(temporary.iterdir()) == []


@pytest.mark.usefixtures("probes_here")
def test_the_spec_says_whether_the_environment_takes_training_info(probed: str) -> None:
    assert probe("told_env:Told").takes_training_info
    assert not probe(probed).takes_training_info


def test_a_spec_survives_its_way_through_json() -> None:
    box = EnvSpec("A-v0", vector_observation(2), BoxAction((1,), (-np.inf,), (1.0,), "float32"), None)
    choice = EnvSpec("B-v0", vector_observation(2, "int64"), DiscreteAction(4, -2), 10)
    assert [EnvSpec.from_data(json.loads(json.dumps(spec.to_data()))) for spec in (box, choice)] == [box, choice]

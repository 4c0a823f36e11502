"""Making and seeding environments, and the sentences for ids that cannot be made."""

from __future__ import annotations

import functools
import itertools
import pickle
import subprocess
import sys
import types
from pathlib import Path

import gymnasium
import pytest

from asyncrl.config.env_maker import EnvMaker
from asyncrl.config.errors import UsageError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs import factory
from asyncrl.envs.factory import env_seed, make_env, make_vector_env

MODULE = """
import gymnasium
class OwnEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, size=1):
        if size < 0:
            raise RuntimeError("negative size")
        self.size = size
gymnasium.register("Own{name}-v0", lambda **kwargs: OwnEnv(**kwargs))
made = OwnEnv()
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE.replace("{name}", name.replace("_", "")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return f"{name}:Own{name.replace('_', '')}-v0"


def refusal(env_id: str, **env_kwargs: object) -> str:
    with pytest.raises(UsageError) as caught:
        make_env(env_id, env_kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_id_of_a_module_in_the_working_directory_is_made_and_its_exception_passes_unchanged(own_module: str) -> None:
    assert make_env(own_module, {"size": 4}).unwrapped.size == 4  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="negative size"):
        make_env(own_module, {"size": -1})


def test_a_mistake_in_a_constructor_is_not_one_of_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mistaken.py").write_text(
        "import gymnasium, numpy\n\nclass Env(gymnasium.Env):\n    def __init__(self, size=1):\n"
        "        self.board = numpy.zeros(3, dtyp=int)\n\ngymnasium.register('Mistaken-v0', Env)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for env_kwargs in ({}, {"size": 2}):
        with pytest.raises(TypeError, match="dtyp"):
            make_env("mistaken:Mistaken-v0", env_kwargs)


def test_gymnasiums_checker_is_not_wrapped_around_the_environment() -> None:
    assert "EnvChecker" not in str(make_env("CartPole-v1"))


@pytest.mark.parametrize("env_id", ["Zzzzzz-v0", "Hoper-v5"])
def test_an_unknown_id_may_be_one_of_a_users_module_whatever_it_resembles(env_id: str) -> None:
    assert f"give --env=MODULE:{env_id}" in refusal(env_id)


def test_what_installs_atari_is_said_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for game in [name for name in gymnasium.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, game)
    assert "pip install ale-py" in refusal("ALE/Pong-v5")


def test_an_id_that_its_module_does_not_register_is_refused(own_module: str) -> None:
    assert "Does that module register it?" in refusal(own_module.partition(":")[0] + ":Zzzzzz-v0")


def test_a_name_of_a_module_that_makes_no_environment_is_answered_in_its_terms(own_module: str) -> None:
    module = own_module.partition(":")[0]
    assert refusal(f"{module}:OwnEmv") == (
        f"{module} has no 'OwnEmv', and registers no environment of that name; the nearest is OwnEnv."
    )
    assert f"{module}:made is an object of OwnEnv: give its class or a function that makes it" in refusal(
        f"{module}:made"
    )
    assert f"give its class or function without parentheses, --env={module}:OwnEnv." in refusal(f"{module}:OwnEnv()")
    assert f"{module} has no 'Owner()'" in refusal(f"{module}:Owner()")
    assert make_env(own_module.removesuffix("-v0")).unwrapped.size == 1  # type: ignore[attr-defined]


def test_a_function_that_returns_several_environments_needs_a_parameter_for_their_number() -> None:
    said = refusal(EnvMaker(lambda: gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")))
    assert "returned SyncVectorEnv, which has several environments: give the function a parameter num_envs" in said


def test_what_is_made_with_num_envs_must_be_vectorized_and_have_as_many() -> None:
    def make_two(num_envs: int) -> gymnasium.vector.VectorEnv[object, object, object]:
        return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")

    def make_single(num_envs: int) -> gymnasium.Env[object, object]:
        return gymnasium.make("CartPole-v1")

    assert make_vector_env(EnvMaker(make_two), {}, num_envs=2).num_envs == 2
    with pytest.raises(UsageError, match="made 2 environments, but num_envs=3 was asked for"):
        make_vector_env(EnvMaker(make_two), {}, num_envs=3)
    with pytest.raises(UsageError, match=r"returned \w+, but a gymnasium\.vector\.VectorEnv is expected"):
        make_vector_env(EnvMaker(make_single), {}, num_envs=3)


@pytest.mark.parametrize("is_single", [True, False])
def test_an_environment_of_a_simulator_is_wrapped_by_the_feature_that_knows_its_package(
    is_single: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Robot:
        pass

    class OwnRobot(Robot):
        pass

    def wrapped(env: object, **options: int) -> gymnasium.vector.VectorEnv[object, object, object]:
        assert isinstance(env, OwnRobot) and options == ({"num_envs": 2} if is_single else {})
        return gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")

    monkeypatch.setattr(Robot, "__module__", "robots.envs")
    known = {"robots": ("robots", wrapped, is_single)}
    monkeypatch.setattr(factory, "hooks", lambda name: known if name == "SIMULATORS" else {})
    assert factory.as_vector_env(OwnRobot(), "module:make", 2).num_envs == 2
    with pytest.raises(UsageError, match="VectorEnv is expected, or an environment of robots"):
        factory.as_vector_env(object(), "module:make", 2)


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def needs_mujoco(**_: object) -> gymnasium.Env[object, object]:
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed, run `pip install gymnasium[mujoco]`")

    gymnasium.register("NeedsMujoco-v0", needs_mujoco)
    try:
        assert 'pip install "gymnasium[mujoco]"' in refusal("NeedsMujoco-v0")
    finally:
        del gymnasium.registry["NeedsMujoco-v0"]


def test_every_environment_of_every_run_has_its_own_seed() -> None:
    # Environments that are made later in a run do not repeat the episodes of its beginning.
    places = itertools.product(range(30), range(30), (0, 1, 500))
    seeds = {env_seed(seed, env_idx, env_steps) for seed, env_idx, env_steps in places}
    assert len(seeds) == 2700
    assert env_seed(3, 7) == env_seed(3, 7)
    make_env("CartPole-v1").reset(seed=env_seed(2**31 - 1, 10**6))


def make_short(steps: int = 7) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=steps)


def test_a_callable_is_made_by_its_name_or_carried_where_that_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("worlds")
    module.make_short = make_short
    module.make_short.__module__ = "worlds"
    monkeypatch.setitem(sys.modules, "worlds", module)
    by_name = TrainConfig(env=make_short).env
    assert by_name == "worlds:make_short" and type(by_name) is str
    assert make_env(by_name, {"steps": 5}).spec.max_episode_steps == 5
    for make, name in (
        (lambda steps=7: make_short(steps), f"{__name__}:test_a_callable"),
        (functools.partial(make_short, steps=7), "worlds:make_short"),
    ):
        carried = TrainConfig(env=make)
        assert isinstance(carried.env, EnvMaker) and carried.env.startswith(name)
        assert make_env(carried.env).spec.max_episode_steps == 7
        crossed = pickle.loads(pickle.dumps(carried))
        assert isinstance(crossed.env, EnvMaker) and make_env(crossed.env).spec.max_episode_steps == 7
        assert type(carried.model_dump()["env"]) is str, "files hold the name only"


def test_a_class_or_function_that_does_not_take_an_argument_says_so(own_module: str) -> None:
    module = own_module.partition(":")[0]
    said = refusal(f"{module}:OwnEnv", sise=4)
    assert said == (
        f"{module}:OwnEnv does not take these arguments (env_kwargs): got an unexpected keyword argument 'sise'."
    )
    assert make_env(f"{module}:OwnEnv", {"size": 4}).unwrapped.size == 4  # type: ignore[attr-defined]

    def needs_length(length: int) -> gymnasium.Env[object, object]:
        return make_short(length)

    carried = EnvMaker(needs_length)
    assert "unexpected keyword argument 'lenght'" in refusal(carried, length=3, lenght=3)
    assert "missing a required argument: 'length'" in refusal(carried)

    def needs_num_envs(num_envs: int, length: int = 3) -> None:
        raise AssertionError("it was called")

    assert "unexpected keyword argument 'lenght'" in refusal(EnvMaker(needs_num_envs), lenght=3)


def test_a_registered_class_or_function_that_does_not_take_an_argument_says_so() -> None:
    def needs_length(length: int) -> gymnasium.Env[object, object]:
        return make_short(length)

    gymnasium.register("NeedsLength-v0", needs_length)
    said = "NeedsLength-v0 does not take these arguments (env_kwargs): "
    try:
        assert refusal("NeedsLength-v0") == f"{said}missing a required argument: 'length'."
        assert refusal("NeedsLength-v0", length=3, lenght=3) == f"{said}got an unexpected keyword argument 'lenght'."
        assert make_env("NeedsLength-v0", {"length": 3}) is not None
    finally:
        del gymnasium.registry["NeedsLength-v0"]


def test_a_decorator_may_take_other_arguments_than_what_it_decorates() -> None:
    @functools.wraps(make_short)
    def scaled(scale: float = 1.0, **kwargs: int) -> gymnasium.Env[object, object]:
        return make_short(**kwargs)

    assert make_env(EnvMaker(scaled), {"steps": 4, "scale": 2.0}).spec.max_episode_steps == 4


def test_an_environment_of_the_package_gym_is_said_to_be_that() -> None:
    class Env:
        """Stands for gym.Env."""

    Env.__module__, Env.__qualname__ = "gym.core", "Env"

    class Old(Env):
        pass

    class Older(Old):
        pass

    text = "is not an environment of Gymnasium: its class must inherit from gymnasium.Env and have spaces of gymnasium."
    for kind in (Old, Older):
        maker = EnvMaker(kind)
        assert refusal(maker).startswith(f"{maker} {text}")
        gymnasium.register("OfGym-v0", kind)
        try:
            assert refusal("OfGym-v0").startswith(f"OfGym-v0 {text}")
        finally:
            del gymnasium.registry["OfGym-v0"]


def test_a_function_of_a_script_is_not_looked_for_elsewhere() -> None:
    with pytest.raises(UsageError, match="move it to a module, and give --env=MODULE:make"):
        make_env("__main__:make")


def test_timers_of_mujoco_do_not_run_in_training() -> None:
    steps = (
        "from asyncrl.envs.factory import make_env\n"
        "def step(in_training):\n"
        "    env = make_env('InvertedPendulum-v5', in_training=in_training)\n"
        "    env.reset(seed=0)\n"
        "    env.step([0.0])\n"
        "    return env.unwrapped.data.timer[0].duration > 0.0\n"
        "runs = mujoco.get_mjcb_time() is not None or step(False)\n"
        "print(runs, step(True))\n"
    )
    for before, expected in (
        ("import mujoco\n", "True False"),
        ("import mujoco, time\nmujoco.set_mjcb_time(time.perf_counter)\n", "True True"),  # the user's own clock stays
    ):
        ran = subprocess.run([sys.executable, "-c", before + steps], capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == expected


def test_a_warning_of_mujoco_is_shown_once_and_leaves_no_file(tmp_path: Path) -> None:
    warns_twice = (
        "import gymnasium, mujoco\n"
        "from asyncrl.envs.factory import make_env\n"
        "make_env('InvertedPendulum-v5')\n"
        "warn = mujoco.get_mju_user_warning()\n"
        "[warn(f'The simulation is unstable. Time = {time}.') for time in range(3)]\n"
        "[make_env('HalfCheetah-v5') for _ in range(2)]\n"
    )
    ran = subprocess.run([sys.executable, "-c", warns_twice], cwd=tmp_path, capture_output=True, text=True, check=True)
    shown = ran.stderr.splitlines()
    assert shown[0] == "MuJoCo: The simulation is unstable."
    assert len(shown) == len(set(shown)) <= 2
    assert list(tmp_path.iterdir()) == []

"""Checks that need the environment's spaces and the machine's memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import gymnasium
import pytest
import torch
from layouts import vector_observation

import asyncrl
from asyncrl import native
from asyncrl.commands.console import print_findings
from asyncrl.config import algorithms
from asyncrl.config.loading import load
from asyncrl.config.machine import Machine
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.envs.probe import probe
from asyncrl.envs.spec import AgentSpaces, BoxAction, DiscreteAction, EnvSpec, ObservationLayout, ObservationPart
from asyncrl.models import registry
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.cores import RecurrentCore
from asyncrl.models.encoders import Inputs, ObservationEncoder
from asyncrl.run import preflight

INF = float("inf")
MACHINE = Machine(cores=2)


@pytest.fixture(autouse=True)
def probed(monkeypatch: pytest.MonkeyPatch) -> dict[str, EnvSpec]:
    """Environments as the probe would find them, by id."""
    specs = {
        "Choice-v0": EnvSpec("Choice-v0", vector_observation(4), DiscreteAction(2, 0), None),
        "Bounded-v0": EnvSpec("Bounded-v0", vector_observation(4), BoxAction((1,), (-1.0,), (1.0,), "float32"), None),
        "Free-v0": EnvSpec("Free-v0", vector_observation(4), BoxAction((1,), (-INF,), (INF,), "float32"), None),
    }
    specs["Vector-v0"] = dataclasses.replace(specs["Choice-v0"], is_vectorized=True, resets_within_step=True)
    screen = ObservationLayout((ObservationPart((), "image", (4, 84, 84), "uint8", channels="first"),))
    specs["Screen-v0"] = EnvSpec("Screen-v0", screen, DiscreteAction(2, 0), None)
    picture = ObservationLayout((ObservationPart((), "numbers", (84, 84), "float32", is_image=True),))
    window = ObservationLayout((ObservationPart((), "numbers", (84, 84), "float32"),))
    specs["Window-v0"] = EnvSpec("Window-v0", window, DiscreteAction(2, 0), None)
    specs["Picture-v0"] = EnvSpec("Picture-v0", picture, DiscreteAction(2, 0), None)
    monkeypatch.setattr(preflight, "probe", lambda env_id, *_, **__: specs[env_id])
    return specs


def checked(*argv: str) -> preflight.Preflight:
    return preflight.run(load(argv, lenient=True), MACHINE)


def test_a_clean_run_has_a_plan_a_spec_and_its_memory() -> None:
    result = checked("--env=Choice-v0")
    assert result.exit_code == 0 and result.problems == ()
    assert result.spec is not None and result.arena_bytes is not None
    assert 0 < result.arena_bytes < result.free_bytes


def test_the_plan_knows_of_convolutions() -> None:
    threads = [
        checked(f"--env={env}", "--async_rl=False", "--batch_size=1024").plan.learner_threads
        for env in ("Choice-v0", "Screen-v0", "Picture-v0", "Window-v0")
    ]
    assert threads == [1, 2, 2, 1]


@pytest.mark.usefixtures("probed")
def test_a_missing_native_core_is_warned_of_where_it_would_be_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "missing.so")
    native.kernels.cache_clear()
    try:
        texts = {
            flags: [warning.text for warning in checked(*flags).warnings if "native core" in warning.text]
            for flags in (("--env=Choice-v0",), ("--env=Choice-v0", "--algo=dqn"), ("--env=Screen-v0",))
        }
    finally:
        native.kernels.cache_clear()
    assert [len(found) for found in texts.values()] == [1, 0, 0]
    assert "Install a C compiler" in texts[("--env=Choice-v0",)][0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU of this machine can be used")
@pytest.mark.usefixtures("probed")
def test_a_run_with_device_auto_uses_the_cpu_and_says_why_if_cuda_fails() -> None:
    gpu = Machine(cores=4, torch_has_cuda=True, num_cuda_devices=1)
    result = preflight.run(load(["--env=Screen-v0"], lenient=True), gpu)
    assert result.plan.device == "cpu" and result.plan.inference_devices == ()
    (warning,) = (warning for warning in result.warnings if "GPU" in warning.text)
    assert "so the run uses the CPU: " in warning.text
    assert ("not compiled with CUDA" if torch.version.cuda is None else "no NVIDIA driver") in warning.text
    asked = preflight.run(load(["--env=Screen-v0", "--device=cuda"], lenient=True), gpu)
    assert asked.plan.device == "cuda" and not any("GPU" in warning.text for warning in asked.warnings)


@pytest.mark.parametrize(
    ("env", "more", "warns"),
    [
        ("Screen-v0", ("--learning_rate=0.001",), True),
        ("Picture-v0", ("--preset=classic_control",), True),
        ("Screen-v0", ("--preset=atari", "--algo=a2c"), False),
        ("Choice-v0", ("--learning_rate=0.01",), False),
        ("Picture-v0", ("--algo=sac", "--learning_rate=0.001", "--replay_size=10000"), False),
    ],
)
def test_a_large_learning_rate_of_convolutions_is_warned_of(env: str, more: tuple[str, ...], warns: bool) -> None:
    result = checked(f"--env={env}", *more)
    assert result.exit_code == 0
    assert any("convolutions" in warning.text for warning in result.warnings) == warns


@pytest.mark.parametrize(
    ("flags", "said", "instead"),
    [
        (("--rollout=1024", "--batch_size=1024"), "One rollout of one agent takes 27.6 MiB", "--rollout=16"),
        (("--algo=sac", "--batch_size=1024", "--replay_size=9999"), "One batch takes 27.6 MiB", "--batch_size=32"),
    ],
)
def test_large_observations_are_warned_of(flags: tuple[str, ...], said: str, instead: str) -> None:
    (warning,) = (each for each in checked("--env=Screen-v0", *flags).warnings if each.settings == ("env",))
    assert warning.text.startswith(f"{said}: an observation of Screen-v0 has 27.6 KiB")
    assert warning.suggestions == ("smaller images", instead)
    assert not any(each.settings == ("env",) for each in checked("--env=Screen-v0").warnings)


def test_what_an_encoder_of_a_users_own_bears_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_encoders", dict(registry._encoders))
    registry.register_encoder("own")(ObservationEncoder)
    result = checked("--env=Screen-v0", "--learning_rate=0.01", "--encoder=own")
    assert result.exit_code == 0
    assert not any("convolutions" in warning.text for warning in result.warnings)


class Encoder(torch.nn.Module):
    output_size = 4

    def __init__(self, layout: ObservationLayout, config: TrainConfig) -> None:
        super().__init__()


class Normalizing(Encoder):
    def __init__(self, layout: ObservationLayout, config: TrainConfig) -> None:
        super().__init__(layout, config)
        self.layer = torch.nn.BatchNorm1d(4)

    def forward(self, inputs: Inputs) -> torch.Tensor:
        return self.layer(inputs.floats)


class Raising(Encoder):
    def forward(self, inputs: Inputs) -> torch.Tensor:
        raise ValueError("it cannot be called")


def fail(layout: ObservationLayout, config: TrainConfig) -> torch.nn.Module:
    raise ValueError("it cannot be made")


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (Normalizing, "is BatchNorm1d, whose running statistics only the learner would have"),
        (fail, "ValueError: it cannot be made"),
        (Raising, "ValueError: it cannot be called"),
    ],
)
def test_the_network_of_one_policy_is_checked_too(
    monkeypatch: pytest.MonkeyPatch, encoder: Callable[..., torch.nn.Module], said: str
) -> None:
    monkeypatch.setattr(registry, "_encoders", dict(registry._encoders))
    registry.register_encoder("own")(encoder)
    flags = ("--env=Choice-v0", "--num_policies=2", "--policy_mapping=random", "--policy.1.encoder=own")
    (problem,) = checked(*flags).problems
    assert said in problem.text and str(Path(asyncrl.__file__).parent) not in problem.text
    if "ValueError" in said:
        start = "--encoder: making or calling the network raised an exception:\nTraceback"
        assert problem.text.startswith(start)


@pytest.mark.parametrize(
    ("register", "flags", "named"),
    [
        ("register_encoder('waves')(Encoder)", ("--encoder=waves",), "encoder"),
        ("register_encoder('waves')(Encoder)", ("--num_policies=2", "--policy.1.encoder=waves"), "encoder"),
        ("register_core('waves')(Core)", ("--core=waves", "--use_rnn"), "core"),
        ("register_model('waves')(Model)", ("--model=waves",), "model"),
        ("register_algorithm(asyncrl.Algorithm('waves', loss=print))", ("--algo=waves",), "algo"),
    ],
)
def test_what_only_the_running_script_has_is_refused(
    register: str, flags: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("_encoders", "_cores", "_models", "_registered_by"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    for table in ("_algorithms", "_registered_by"):
        monkeypatch.setattr(algorithms, table, dict(getattr(algorithms, table)))
    known = {"asyncrl": asyncrl, "Encoder": ObservationEncoder, "Core": RecurrentCore, "Model": ActorCritic}
    found = {}
    for module in ("__main__", "my_networks"):
        exec(f"asyncrl.{register}", {"__name__": module, **known})
        found[module] = [problem.text for problem in checked("--env=Choice-v0", *flags).problems]
    assert found == {
        "__main__": [
            f"--{named}=waves is registered by this script, which other commands cannot import: move it to a module "
            'and give import_modules=["MODULE"].'
        ],
        "my_networks": [],
    }


@pytest.mark.parametrize(("env", "code"), [("Bounded-v0", 0), ("Free-v0", 2), ("Choice-v0", 2)])
def test_squashing_needs_finite_bounds(env: str, code: int) -> None:
    assert checked(f"--env={env}", "--squash_actions").exit_code == code
    assert checked(f"--env={env}").exit_code == 0


def test_a_run_that_does_not_fit_into_memory_is_refused_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = checked("--env=Choice-v0").arena_bytes
    assert needed is not None
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed - 1)
    (problem,) = checked("--env=Choice-v0").problems
    assert str(needed) in problem.text and str(needed - 1) in problem.text
    monkeypatch.setattr(preflight, "available_bytes", lambda: needed)
    assert checked("--env=Choice-v0").exit_code == 0


def test_processes_that_may_not_fit_beside_the_shared_memory_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    roomy = checked("--env=Choice-v0", "--num_workers=4")
    assert roomy.arena_bytes is not None
    monkeypatch.setattr(preflight, "available_bytes", lambda: roomy.arena_bytes + (100 << 20))
    tight = checked("--env=Choice-v0", "--num_workers=4")
    assert tight.exit_code == 0
    (warning,) = set(tight.warnings) - set(roomy.warnings)
    assert "6 processes take about 540 MiB" in warning.text and "100 MiB" in warning.text


def test_mistakes_in_flags_are_reported_together_with_what_does_not_fit() -> None:
    result = checked("--env=Free-v0", "--gamma=2", "--squash_actions", "--batch_size=33")
    assert [problem.settings[0] for problem in result.problems] == ["gamma", "batch_size", "squash_actions"]


def test_no_problem_is_invented_from_the_default_in_a_mistakes_place() -> None:
    result = checked("--env=Choice-v0", "--rolout=33", "--batch_size=33")
    assert len(result.problems) == 1 and "nearest is --rollout" in result.problems[0].text


def test_a_check_of_the_environment_that_takes_long_is_said_meanwhile(
    probed: dict[str, EnvSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(env_id: str, *_: object, say: Callable[[str], None], **__: object) -> EnvSpec:
        say(f"Checking {env_id}")
        return probed[env_id]

    monkeypatch.setattr(preflight, "probe", slow)
    said: list[str] = []
    assert preflight.run(load(["--env=Choice-v0"], lenient=True), MACHINE, say=said.append).exit_code == 0
    assert said == ["Checking Choice-v0"]


@pytest.mark.usefixtures("fresh_probes")
def test_an_environment_that_only_this_program_has_registered_is_told_how_its_processes_find_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preflight, "probe", probe)
    monkeypatch.setitem(gymnasium.registry, "OfThisProgram-v0", gymnasium.spec("CartPole-v1"))
    (problem,) = checked("--env=OfThisProgram-v0").problems
    assert problem.text == (
        "OfThisProgram-v0 is registered in this program only, and its processes cannot import that: give env=MyEnv, "
        "the class or a function, or move the registration to a module and give --env=MODULE:OfThisProgram-v0."
    )
    (problem,) = checked("--env=OfNoProgram-v0").problems
    assert "Gymnasium knows no environment 'OfNoProgram-v0'" in problem.text
    (problem,) = checked("--env=CartPole-v1", '--env_kwargs={"colour": 1}').problems
    assert "does not take these arguments" in problem.text


def test_an_environment_that_raises_is_no_mistake_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(env_id: str, *_: object, **__: object) -> EnvSpec:
        raise EnvironmentFailed("Broken-v0 raised:\nits traceback")

    monkeypatch.setattr(preflight, "probe", fail)
    result = checked("--env=Broken-v0")
    assert print_findings(result) == result.exit_code == 1
    assert capsys.readouterr().err.count("its traceback") == 1


def test_noise_of_continuous_actions_has_no_effect_on_choices() -> None:
    (warning,) = checked("--env=Choice-v0", "--algo=sac", "--exploration_noise=pink").warnings
    assert "no continuous actions" in str(warning)
    assert not checked("--env=Choice-v0", "--algo=sac").warnings


def test_a_recurrent_policy_that_misses_first_observations_is_warned_of_and_decides_no_best_checkpoint() -> None:
    for env, use_rnn in (("Vector-v0", False), ("Choice-v0", True)):
        assert not checked(f"--env={env}", f"--use_rnn={use_rnn}").warnings
    (warning,) = checked("--env=Vector-v0", "--use_rnn=True").warnings
    assert "misses the first observation" in str(warning)
    assert "no best checkpoint is chosen" in str(warning) and "--eval_every_env_steps=" in str(warning)
    (warning,) = checked("--env=Vector-v0", "--use_rnn=True", "--eval_every_env_steps=1000").warnings
    assert "best" not in str(warning) and "--eval_every_env_steps=" not in str(warning)


TENSORS = {"serial_mode": True, "async_rl": False, "num_workers": 1, "env_backend": "tensor"}


@pytest.mark.parametrize("flags", [(), ("--env_backend=tensor",)], ids=["recognized", "given"])
def test_an_environment_of_tensors_gets_the_settings_that_it_needs(
    flags: tuple[str, ...], probed: dict[str, EnvSpec]
) -> None:
    probed["Tensors-v0"] = dataclasses.replace(probed["Choice-v0"], is_vectorized=True, gives_tensors=True)
    result = checked("--env=Tensors-v0", *flags, "--batch_size=128", "--num_envs_per_worker=4")
    assert result.problems == ()
    assert {name: getattr(result.config, name) for name in TENSORS} == TENSORS
    assert result.plan.steps_tensors and result.plan.num_slots == 0
    (problem,) = checked("--env=Tensors-v0", *flags, "--batch_size=128", "--async_rl=True").problems
    assert "--env_backend=tensor steps environments" in problem.text
    assert problem.suggestions == ("--async_rl=False", "without these flags")


def test_an_environment_of_tensors_may_have_a_worker_of_its_own(probed: dict[str, EnvSpec]) -> None:
    probed["Tensors-v0"] = dataclasses.replace(probed["Choice-v0"], is_vectorized=True, gives_tensors=True)
    flags = ("--env=Tensors-v0", "--env_backend=gym_vector", "--batch_size=128", "--num_envs_per_worker=4")
    result = checked(*flags)
    assert result.problems == () and result.config.async_rl and result.config.env_backend == "gym_vector"
    assert (result.plan.num_workers, result.plan.worker_num_splits, result.plan.steps_tensors) == (1, 1, False)
    assert checked(*flags, "--num_workers=2").plan.num_workers == 2


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--critic_only_keys=sean",), "no such key of observations; those of Keys-v0 are seen, hidden."),
        (("--critic_only_keys=action_mask",), "the actor needs the mask of its actions."),
        (("--critic_only_keys=seen,hidden",), "leaves the actor nothing to see."),
        (("--critic_only_keys=hidden", "--actor_critic_share_weights=True"), "needs separate networks"),
        (("--critic_only_keys=hidden", "--algo=dqn"), "--algo=dqn has one network, which acts."),
    ],
)
def test_keys_that_only_the_critic_sees_are_there_and_leave_the_actor_something(
    flags: tuple[str, ...], said: str, probed: dict[str, EnvSpec]
) -> None:
    parts = [ObservationPart((name,), "numbers", (2,), "float32") for name in ("seen", "hidden")]
    layout = ObservationLayout((*parts, ObservationPart(("action_mask",), "mask", (2,), "int8")))
    probed["Keys-v0"] = EnvSpec("Keys-v0", layout, DiscreteAction(2, 0), None)
    (problem,) = checked("--env=Keys-v0", *flags).problems
    assert said in str(problem)
    assert checked("--env=Keys-v0", "--critic_only_keys=hidden").problems == ()
    (problem,) = checked("--env=Choice-v0", "--critic_only_keys=hidden").problems
    assert "no such key of observations; they have no keys." in str(problem)


def test_keys_of_the_critic_of_one_policy_are_those_of_its_agents(probed: dict[str, EnvSpec]) -> None:
    layouts = [
        ObservationLayout(tuple(ObservationPart((name,), "numbers", (2,), "float32") for name in names))
        for names in (("seen", "hidden"), ("seen", "own"))
    ]
    agents = ("first", "second")
    one = EnvSpec("Keys-v0", layouts[0], DiscreteAction(2, 0), None, agents)
    spaces = tuple(AgentSpaces(layout, one.action) for layout in layouts)
    probed["Keys-v0"] = dataclasses.replace(one, spaces=spaces, of_agents=(0, 1))

    def found(*flags: str) -> list[str]:
        return [problem.text for problem in checked("--env=Keys-v0", "--num_policies=2", *flags).problems]

    assert found("--policy.0.critic_only_keys=hidden", "--policy.1.critic_only_keys=own") == []
    missing = "no such key of observations; those of Keys-v0 are"
    assert found("--policy.0.critic_only_keys=own", "--policy.1.critic_only_keys=hidden") == [
        f"Policy 0: --critic_only_keys=own: {missing} seen, hidden.",
        f"Policy 1: --critic_only_keys=hidden: {missing} seen, own.",
    ]
    assert found("--critic_only_keys=hidden") == [f"--critic_only_keys=hidden: {missing} seen, own."]
    assert found("--critic_only_keys=hidden", "--policy.1.critic_only_keys=own") == []
    assert found("--critic_only_keys=gone", "--policy.1.critic_only_keys=own") == [
        f"--critic_only_keys=gone: {missing} seen, hidden."
    ]

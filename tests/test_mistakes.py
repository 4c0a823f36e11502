"""Fifty mistakes on the command lines, each answered with sentences that say what to do, and with the exit code.

All run in this process, the check of the environment, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from layouts import vector_observation

import asyncrl
from asyncrl.commands import benchmark, evaluate, plot, train, validate
from asyncrl.config.errors import UsageError
from asyncrl.config.loading import load
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.spec import DiscreteAction, EnvSpec
from asyncrl.models.actor_critic import ActorCritic
from asyncrl.run import preflight, session
from asyncrl.storage import checkpoint
from asyncrl.storage.run_folder import RunFolder

MAINS: dict[str, Callable[[list[str]], int]] = {
    "train": train.main,
    "validate": validate.main,
    "evaluate": evaluate.main,
    "benchmark": benchmark.main,
    "plot": plot.main,
}
SPEC = EnvSpec("CartPole-v1", vector_observation(4), DiscreteAction(2, 0), 500)
STEPS = 200_168


BEGINNING = re.compile(r"error: ([A-Z]|--|\S*[^a-z\s])")
"""A sentence, a flag, or something that is written small: a path, an id, a setting's name."""
CART_POLE = "--env=CartPole-v1"
MISTAKES = {
    "train": [
        ("", "No environment was given. Would pass: --env=CartPole-v1"),
        ("CartPole-v1", "Unexpected argument 'CartPole-v1'. Did you mean --env=CartPole-v1?", 2),
        ("-env CartPole-v1", "Unexpected argument '-env'. Did you mean --env?", 3),
        ("--config=missing.yaml", "Cannot read the file missing.yaml: No such file"),
        ("--config=broken.yaml", "broken.yaml is not valid YAML"),
        ("--config=typo.yaml", "typo.yaml there is no setting lerning_rate; the nearest is learning_rate."),
        ("--env=CartPol-v1", "the nearest is CartPole-v1"),
        ("--env=probe_envs.Still", "For Still of the module probe_envs, give --env=probe_envs:Still."),
        ("--env=Robo-v0", "If a module of yours registers it, give --env=MODULE:Robo-v0."),
        ("--env=no_such:Robo-v0", "There is no module 'no_such' in the working directory"),
        ("--env=:Robo-v0", "is not of the form MODULE:Id."),
        ("--experiment=elsewhere/moved", "give --train_dir=elsewhere --experiment=moved.", 2),
        ("--experiment=rum", "No environment was given, and there is no run 'rum' in train_dir to resume."),
        ("--experiment=run --encoder_mlp_layers=[32]", "made with encoder_mlp_layers=[64, 64]; you gave [32]. "),
        ("--experiment=train_dir/run --algo=a2c", "the checkpoint was made with algo=ppo; you gave a2c."),
    ],
    "train --env=CartPole-v1": [
        ("--num_worker=2", "There is no flag --num_worker; the nearest is --num_workers."),
        ("--total_timesteps=1e6", "total_timesteps is --train_for_env_steps."),
        ("--lr=1e-3 --n_steps=8", "Stable-Baselines3's n_steps is --rollout (of SAC: --n_step).", 2),
        ("my_run", "Unexpected argument 'my_run'. Did you mean --experiment=my_run?"),
        ("--seed", "--seed needs a value: give --seed=VALUE."),
        ("--wandb", "There is no flag --wandb."),
        ("--num_workers=-2", "--num_workers=-2 is not possible: expected a whole number"),
        ("--num_workers=many", "--num_workers=many is not possible"),
        ("--gamma=2 --rollout=0", "at least 0 and at most 1.", 2),
        ("--learning_rate=fast", "expected a number at least 0."),
        ("--algo=APPO", "Sample Factory's APPO is --algo=ppo --async_rl=True."),
        ("--algo=pp0", "; the nearest is ppo."),
        ("--device=tpu", "expected one of auto, cpu, cuda, cuda:N; the nearest is cpu."),
        ("--device=cuda:99", "--device=cuda:99: the "),
        ("--async_rl=maybe", "expected True or False."),
        ('--env_kwargs={"a', "is not valid YAML or JSON: expected a JSON object."),
        ("--preset=mujocco", "There is no preset 'mujocco'"),
        ('--env_kwargs={"colour":1}', "does not take these arguments (env_kwargs)"),
        ("--env_kwargs={colour:1}", "YAML wants a space after the colon, 'colour: 1'."),
        ("--encoder=waves", "--encoder=waves is not registered (known: default"),
        ("--model=wide", "--model=wide is not registered (known: default)"),
        ("--use_rnn --core=traces", "--core=traces is not registered (known: default)"),
        ("--import_modules=typo", "There is no module 'typo'"),
        ("--import_modules=waves.py", "give it as in an import, such as package.module."),
        ("--batch_size=1000", "1000 / 32 = 31.25. Would pass: --batch_size=992"),
        ("--async_rl=False --num_workers=3 --num_envs_per_worker=7", "is not a multiple of 3 x 7"),
        ("--num_workers=300", "at most 240 worker processes (limit on file descriptors)"),
        ("--algo=dqn --backend=hogwild", "trains PPO, A2C (A3C) and SAC, not DQN."),
        ("--algo=dqn --use_rnn", "--use_rnn=True needs trajectories, SAC or TD3, but --algo=dqn"),
        ("--squash_actions", "needs continuous actions with finite bounds"),
        ("--save_best_metric=eval", "needs evaluations during training"),
        ("--algo=sac --replay_size=1e12", "of shared memory, but only"),
        ("--experiment=../../x", "cannot name a run: it must be the name of one folder"),
        ("--init_from=missing", "--init_from=missing: There is no run 'missing' in train_dir"),
        ("--init_from=no/such", "--init_from=no/such: There is no run no/such: no such path."),
        ("--init_from=run --nonlinearity=elu", "with nonlinearity=tanh; this run has elu."),
    ],
    "validate --env=CartPole-v1": [
        ("--experiment=../../x", "cannot name a run: it must be the name of one folder"),
        ("--experiment=foreign", "is not an asyncrl run (it has no .asyncrl-run)"),
        ("--experiment=busy", "is in use by another run (process "),
        ("--train_dir=typo.yaml", "typo.yaml is not a folder."),
        ("--num_ranks=0", "--num_ranks=0 is not possible"),
        ("--num_ranks=4 --num_local_ranks=3", "must be a multiple of --num_local_ranks=3: every"),
    ],
    "validate": [
        ("--experiment=run --env=MountainCar-v0", "with env=CartPole-v1; you gave MountainCar-v0."),
        ("--experiment=other_spaces", "Cannot resume: Checkpoint train_dir/other_spaces/"),
    ],
    "evaluate": [
        ("", "No run was given: give RUN"),
        ("run --experiment=rum", "Give one run, not run and rum."),
        ("--experiment=rum", "There is no run 'rum' in train_dir; the newest there: "),
        ("--checkpoint=typo.yaml", "There is no run 'typo.yaml'"),
        ("--experiment=empty", "has no newest checkpoint yet: let it train until it has saved one."),
    ],
    "evaluate --experiment=run": [
        ("--checkpoint=lastest", "There is no checkpoint 'lastest' of train_dir/run: expected newest, best,"),
        ("--episodes=0", "--episodes=0 is not possible: expected a whole number greater than 0."),
        ("--device=tpu", "Device tpu is not possible: expected cpu, cuda or cuda:N."),
        ("--render --video=here", "give one of the two."),
    ],
    "benchmark": [
        ("--output=out", "--env is required"),
        ("--output=out --from_run=rum", "--from_run=rum is not the folder of a run"),
    ],
    "benchmark --env=CartPole-v1 --output=out": [
        ("--async_rl=True", "use --modes=sync,async."),
        ("--encoder=waves", "--encoder=waves is not registered"),
        ("--num_workers=0", "expected whole numbers greater than 0 or auto, one"),
    ],
    "plot": [
        ("", "No run was given: the first argument is a run or one of trial, compare, speedup"),
        ("trail run", "There is no command or run 'trail'"),
        ("trail run", "; the nearest is trial."),
        ("rum", "; the nearest is run."),
        ("trial", "No run was given: trial needs at least one"),
        ("trial rum", "There is no run "),
        ("compare run run --x=env_steps", "is given twice: name each run once."),
        ("compare run --x=env_steps --metric=eval", "Run run has recorded no evaluation"),
        ("compare run --x=wall_time", "Run run has recorded no time/time_elapsed"),
        ("trial empty", "give the folder of a run that has trained."),
        ("trial run --window=2", "--window=2 is more than the 1 records of run"),
        ("speedup run elsewhere/moved", "The number of workers of run is unknown: "),
        ("compare run --x=steps", "--x=steps is not possible: expected env_steps, per_worker_steps, "),
    ],
}
"""By what the command line begins with: its other flags, what is said, and in how many errors if not in one."""


UNFINISHED_ENCODER = """
import asyncrl

@asyncrl.register_encoder("unfinished")
def make(layout, config):
    raise NotImplementedError("of my own")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with runs and files that mistakes are made with."""
    place = tmp_path_factory.mktemp("mistakes")
    (place / "broken.yaml").write_text("seed: [1\n")
    (place / "typo.yaml").write_text("env: CartPole-v1\nlerning_rate: 1\n")
    (place / "waves.py").write_text("")
    (place / "raises.py").write_text("def fail():\n    raise ValueError('of my own')\n\n\nfail()\n")
    (place / "unfinished_encoder.py").write_text(UNFINISHED_ENCODER)
    (place / "train_dir" / "foreign").mkdir(parents=True)
    (place / "train_dir" / "foreign" / "thesis.tex").write_text("keep")
    save_run(place / "train_dir", "run")
    save_run(place / "elsewhere", "moved")
    save_run(place / "train_dir", "other_spaces", EnvSpec("CartPole-v1", vector_observation(5), SPEC.action, 500))
    with RunFolder.create(str(place / "train_dir"), "empty", "resume") as folder:
        folder.write_config(TrainConfig(env="CartPole-v1"))
    with RunFolder.create(str(place / "train_dir"), "busy", "resume"):
        yield place


def save_run(train_dir: Path, name: str, spec: EnvSpec = SPEC) -> None:
    """A run with a checkpoint, which was started for one second, quietly, and from another run."""
    config = TrainConfig(env="CartPole-v1", experiment=name, train_for_seconds=1.0, quiet=True, init_from="gone")
    weights = ActorCritic(spec, config).state_dict()
    state = {"config": config.model_dump(mode="json"), "spec": spec.to_data(), "env_steps": STEPS, "elapsed_s": 9.0}
    with RunFolder.create(str(train_dir), name, "resume") as folder:
        folder.write_config(config)
        content = checkpoint.Checkpoint(weights, {"step": torch.zeros(1)}, state)
        checkpoint.save(folder.checkpoints, content, STEPS, keep=1)
        checkpoint.save_best(folder.checkpoints, content, STEPS, 1.0)
        folder.metrics.write_text(json.dumps({"env_steps": 1, "rollout/ep_rew_mean": 1.0}) + "\n")


@pytest.fixture(autouse=True)
def in_this_process(place: Path, monkeypatch: pytest.MonkeyPatch, probes_here: None) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(session, "start_loading_modules", lambda context: None)
    monkeypatch.setattr(benchmark, "start_loading_modules", lambda context: None)


def contents(place: Path) -> set[tuple[Path, int]]:
    return {(path, path.stat().st_mtime_ns) for path in place.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.parametrize(
    ("begins", "flags", "said", "num_errors"),
    [(begins, *mistake, 1)[:4] for begins, mistakes in MISTAKES.items() for mistake in mistakes],
)
def test_a_mistake_is_answered_with_sentences_and_the_exit_code(
    begins: str, flags: str, said: str, num_errors: int, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each error is one line; warnings depend on the machine."""
    command, *given = f"{begins} {flags}".split()
    before = contents(place)
    code = MAINS[command](given)
    stderr = capfd.readouterr().err
    lines = stderr.splitlines()
    assert code == 2, stderr
    assert said in stderr
    errors = [line for line in lines if not line.startswith("warning: ")]
    assert len(errors) == num_errors, stderr
    assert all(line.startswith("error: ") and line.endswith((".", "?")) for line in errors), stderr
    assert all(BEGINNING.match(line) for line in errors), stderr
    assert "Traceback" not in stderr and '.py"' not in stderr
    assert contents(place) == before, "nothing is started or changed"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--import_modules=raises"], "--import_modules: importing a module raised an exception:"),
        (
            ["--import_modules=unfinished_encoder", "--encoder=unfinished"],
            "--encoder: making or calling the network raised an exception:",
        ),
    ],
)
def test_an_exception_in_a_module_of_the_users_is_shown_without_frames_of_the_package(
    flags: list[str], said: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train.main([CART_POLE, *flags]) == 2
    stderr = capfd.readouterr().err
    assert stderr.startswith(f"error: {said}\nTraceback")
    assert "Error: of my own" in stderr.splitlines()[-1]
    assert f"{place}/" in stderr
    assert f"{Path(asyncrl.__file__).parent}/" not in stderr


def test_a_run_that_is_trained_already_says_how_far_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    for experiment in ("run", "train_dir/run"):
        assert train.main([f"--experiment={experiment}", "--train_for_env_steps=60000"]) == 0
        printed = capfd.readouterr()
        said = "Nothing to do: the run already has 200,168 steps. Give a larger --train_for_env_steps.\n"
        assert printed.err == said
        assert printed.out.splitlines()[0].startswith("preset none: a resumed run keeps its settings")
        assert len(printed.out.splitlines()) == 1
    assert train.main(["--experiment=run", "--train_for_seconds=9", "--quiet"]) == 0
    assert "the run already has 9 s of training. Give a larger --train_for_seconds." in capfd.readouterr().err


def test_nothing_that_belongs_to_one_start_is_inherited(capfd: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--experiment=run", "--json", "--print_config"]) == 0
    report = json.loads(capfd.readouterr().out)
    for name in ("quiet", "train_for_seconds", "profile"):
        assert report["config"][name]["origin"] == "default"
    assert report["config"]["env"]["origin"] == "saved run"


def test_the_settings_of_an_old_run_start_a_new_one(capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["--config=train_dir/run/config.yaml", "--seed=5", "--json", "--print_config", "--init_from=none"]
    assert validate.main(flags) == 0, capfd.readouterr()
    config = json.loads(capfd.readouterr().out)["config"]
    assert config["experiment"]["value"] is None
    assert (config["env"]["value"], config["seed"]["value"]) == ("CartPole-v1", 5)


@pytest.mark.parametrize(
    "named",
    ["run", "train_dir/run", "train_dir/run/", "train_dir/run/checkpoints", "train_dir/run/checkpoints/best"],
)
def test_a_run_or_checkpoint_is_found_by_what_the_screen_prints(
    named: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for flags in ([f"--experiment={named}"], [f"--checkpoint={named}"]):
        assert evaluate.main([*flags, "--episodes=1", "--json"]) == 0, capfd.readouterr()
        found = json.loads(capfd.readouterr().out.splitlines()[-1])["checkpoint"]
        assert found.endswith(f"checkpoint_{STEPS:012d}")
        assert ("best" in found) == ("best" in named)
    assert validate.main([CART_POLE, f"--init_from={named}", "--preset=none"]) == 0, capfd.readouterr()
    checked = preflight.run(load([CART_POLE, f"--init_from={named}"], lenient=True))
    assert checked.config.init_from is not None
    assert Path(checked.config.init_from).name == f"checkpoint_{STEPS:012d}"
    assert asyncrl.load_policy(named).config.env == "CartPole-v1"


def test_a_checkpoint_of_a_run_is_found_by_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    for name in (f"checkpoint_{STEPS:012d}", "best"):
        assert evaluate.main(["--experiment=run", f"--checkpoint={name}", "--episodes=1"]) == 0, capfd.readouterr()
    assert plot.main(["trial", "run"]) == 0, capfd.readouterr()


@pytest.mark.parametrize(("which", "said"), [("lastest", "expected newest or best"), ("Best", "the nearest is best")])
def test_a_policy_that_does_not_exist_is_not_silently_another(which: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        asyncrl.load_policy("run", which=which)

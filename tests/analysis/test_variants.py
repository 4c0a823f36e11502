import pytest

from asyncrl.analysis.benchmark.results import LearningFigures, ResultStore, SimulationFigures
from asyncrl.analysis.benchmark.tasks import num_passes
from asyncrl.analysis.benchmark.variants import Layout, Protocol, Task, Variant, ordered_tasks
from asyncrl.config.schema import TrainConfig

SMALL, LARGE = Layout(1, 8), Layout(2, 32)
VARIANTS = [Variant("sync", "local", SMALL), Variant("async", "local", SMALL), Variant("sampling", "central", LARGE)]


def test_each_round_simulates_first_and_turns_the_order_of_the_variants_round():
    protocol = Protocol(("short",), throughput=("--learning_rate=0",), learning=("--gamma=1",), conditions=())
    tasks = ordered_tasks(VARIANTS, (5, 6), protocol)
    rounds = [[(task.kind, task.name) for task in tasks if task.seed == seed] for seed in (5, 6)]
    simulations = [("simulation", "1 x 8"), ("simulation", "2 x 32")]
    runs = [("throughput", variant.name) for variant in VARIANTS]
    learning = [("learning", "sync local 1 x 8"), ("learning", "async local 1 x 8")]
    assert rounds[0] == [*simulations, *runs, *learning]
    assert rounds[1] == [*simulations, *reversed(runs), *reversed(learning)]
    assert [task.kind for task in tasks[-4:]] == ["learning"] * 4, "all throughput is measured before learning"
    assert next(task for task in tasks if task.kind == "throughput").flags == (
        "--async_rl=False", "--inference_mode=local", "--num_workers=1", "--num_envs_per_worker=8", "--learning_rate=0",
    )  # fmt: skip


def test_ranks_are_compared_with_as_many_processes_of_pure_simulation_and_started_by_torchrun():
    one, three = (Variant("async", "local", SMALL, num_ranks, learner_threads=2) for num_ranks in (1, 3))
    tasks = ordered_tasks([one, three], (0,), Protocol((), throughput=(), learning=None, conditions=()))
    assert [(task.kind, task.name, task.num_ranks) for task in tasks] == [
        ("simulation", "1 x 8", 1),
        ("simulation", "3 x 8", 1),
        ("throughput", "async local 1 x 8", 1),
        ("throughput", "async local 1 x 8 3 ranks", 3),
    ]
    assert tasks[2].flags == tasks[3].flags, "each rank is the same"
    assert "--learner_threads=2" in tasks[3].flags


def test_what_is_not_asked_for_is_not_measured():
    protocol = Protocol(simulation=(), throughput=None, learning=(), conditions=())
    assert {task.kind for task in ordered_tasks(VARIANTS, (0,), protocol)} == {"learning"}


def test_results_outlive_a_line_that_was_cut_off(tmp_path):
    path = tmp_path / "results.jsonl"
    first = Task("simulation", "1 x 8", 0, (), ("simulate_s=1",))
    second = Task("learning", "sync local 1 x 8", 0, ("--gamma=1",), ())
    learned = LearningFigures(10, 1.0, 2.0, None, [[5.0, 0.5, 1.0]])
    ResultStore(path).add(first, SimulationFigures(100.0, replayed=False), "one")
    with path.open("a") as file:
        file.write('{"task": {"kind": "lear')
    ResultStore(path).add(second, learned, "two")
    of_ranks = Task("learning", "async local 1 x 8 2 ranks", 0, (), (), num_ranks=2)
    ResultStore(path).add(of_ranks, learned, "two")
    store = ResultStore(path)
    assert store.get(of_ranks) == learned
    assert store.get(first) == SimulationFigures(100.0, replayed=False)
    assert store.get(second) == learned
    assert store.code_of([first, second]) == ["one", "two"]


def test_a_result_under_other_conditions_is_not_taken(tmp_path):
    store = ResultStore(tmp_path / "results.jsonl")
    store.add(Task("simulation", "1 x 8", 0, (), ("simulate_s=1",)), SimulationFigures(100.0, replayed=False), "one")
    assert store.get(Task("simulation", "1 x 8", 0, (), ("simulate_s=9",))) is None


@pytest.mark.parametrize(("mode", "expected"), [("sync", 4), ("sampling", 0), ("hogwild", 1)])
def test_samples_are_trained_on_as_often_as_the_mode_says(mode, expected):
    variant = Variant(mode, "local", Layout(1, 8))
    config = TrainConfig(algo="a2c", num_epochs=4, backend="hogwild" if mode == "hogwild" else "actor_learner")
    assert num_passes(Task("throughput", variant.name, 0, variant.flags, ()), config) == expected

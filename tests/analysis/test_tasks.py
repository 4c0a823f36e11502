import pytest

from asyncrl.analysis.benchmark.tasks import num_passes
from asyncrl.analysis.benchmark.variants import Layout, Task, Variant
from asyncrl.config.schema import TrainConfig


@pytest.mark.parametrize(("mode", "expected"), [("sync", 4), ("sampling", 0), ("hogwild", 1)])
def test_samples_are_trained_on_as_often_as_the_mode_says(mode, expected):
    variant = Variant(mode, "local", Layout(1, 8))
    config = TrainConfig(algo="a2c", num_epochs=4, backend="hogwild" if mode == "hogwild" else "actor_learner")
    assert num_passes(Task("throughput", variant.name, 0, variant.flags, ()), config) == expected

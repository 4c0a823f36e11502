"""Settings of networks and critics of papers: what a paper's name stands for, and what does not go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import rules

from asyncrl.config.loading import load, load_given
from asyncrl.config.machine import Machine
from asyncrl.config.schema import TrainConfig


def warned(**settings: Any) -> set[str]:
    return {name for warning in rules.warnings(algo="sac", **settings) for name in warning.settings}


@pytest.mark.parametrize(
    ("settings", "words", "fitting"),
    [
        ({"hyperspherical_weights": True, "batch_renorm": True}, "both normalize", "--batch_renorm=False"),
        ({"residual_blocks": True, "encoder_mlp_layers": [8, 9]}, "one width", "--encoder_mlp_layers=8,8"),
        ({"residual_blocks": True, "critic_mlp_layers": [9, 8]}, "one width", "--critic_mlp_layers=9,9"),
        ({"batch_renorm": True, "batch_size": 1}, "two samples", "--batch_size=256"),
        ({"value_bins": 51, "backend": "hogwild"}, "--value_bins: Hogwild", "--value_bins=none"),
        ({"residual_blocks": True, "algo": "dqn"}, "only SAC", "--algo=sac"),
        ({"residual_blocks": True, "use_rnn": True}, "--residual_blocks=True", "--residual_blocks=False"),
        ({"value_bins": 51, "use_rnn": True}, "--value_bins=51", "--value_bins=none"),
        ({"batch_renorm": True, "critic_only_keys": ["hidden"]}, "networks of blocks", "--batch_renorm=False"),
        (
            {"critic": "simba", "residual_blocks": True, "critic_only_keys": ["hidden"]},
            "networks of blocks",
            "--critic=mlp",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence(settings: dict[str, Any], words: str, fitting: str) -> None:
    (problem,) = rules.problems(**{"algo": "sac", **settings})
    assert words in problem.text and fitting in problem.suggestions


def test_bins_end_at_returns_that_a_run_probably_exceeds() -> None:
    assert "value_limit" in warned(value_bins=101)
    assert warned(value_bins=101, normalize_rewards=True) == warned(value_bins=101, value_limit=50.0) == set()


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"use_target_critics": False, "tau": 0.1}, "tau"),
        ({"batch_renorm": True, "critic_layer_norm": True}, "critic_layer_norm"),
    ],
)
def test_settings_of_perceptrons_and_targets_have_no_effect(settings: dict[str, Any], missing: str) -> None:
    assert missing in warned(**settings)


def test_a_critic_stands_for_values_that_flags_override(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["--env=HalfCheetah-v5", "--algo=sac", "--critic=simba", "--device=cpu"]
    plain, loaded = load([*argv[:2], "--device=cpu"]), load([*argv, "--weight_decay=0.5"])
    assert not plain.config.residual_blocks and plain.config.critic_mlp_layers is None
    config = loaded.config
    assert config.residual_blocks and config.normalize_input and config.weight_decay == 0.5
    assert config.learning_rate == 1e-4 and loaded.origins["learning_rate"] == "critic simba"  # over the preset's
    assert config.critic_mlp_layers == [128, 128]
    assert load([*argv[:3], "--device=cuda"]).config.critic_mlp_layers == [512, 512]
    assert load([*argv, "--learner_device=cuda:1"]).config.critic_mlp_layers == [512, 512]
    monkeypatch.setattr(Machine, "detect", lambda: Machine(4, torch_has_cuda=True, num_cuda_devices=1))
    assert load(argv[:3]).config.critic_mlp_layers == [512, 512]
    assert load(["--algo=dqn", "--critic=simba"]).config.residual_blocks is False
    assert load_given(TrainConfig(algo="sac", critic="crossq")).config.batch_renorm


def test_a_resumed_run_keeps_the_widths_that_it_began_with(tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text("algo: sac\ncritic: simba\nresidual_blocks: true\ncritic_mlp_layers: [7, 7]\n")
    loaded = load(["--experiment=run", "--critic=crossq"], find_saved=lambda *_: saved)
    assert loaded.config.batch_renorm, "a run without a checkpoint may still change it"
    loaded = load(["--experiment=run", "--device=cuda"], find_saved=lambda *_: saved)
    assert loaded.config.critic_mlp_layers == [7, 7] and loaded.config.value_bins is None

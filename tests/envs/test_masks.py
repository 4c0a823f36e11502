"""Masks of allowed actions in places where nothing reads them are named before a run, with the place for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncrl import train, validate

pytestmark = pytest.mark.usefixtures("probes_here")

NOT_READ = "a mask of allowed actions is not read there"
REMEDY = "A mask must be in the observation, a Dict, under the key action_mask."


@pytest.mark.parametrize(
    ("env", "kwargs", "place"),
    [
        ("ByMethod", "{}", "action_masks():"),
        ("wrapped", "{}", "action_masks():"),
        ("ByInfo", "{}", 'info["action_mask"]:'),
        ("ByInfo", '{"key": "avail_actions", "after_steps": 1}', 'info["avail_actions"]:'),
        ("ByInfo", '{"key": "legal_moves", "as_list": true}', 'info["legal_moves"]:'),
        ("ByObservation", "{}", 'observation["mask"]:'),
        ("ByObservation", '{"key": "action_masks"}', 'observation["action_masks"]:'),
        ("Orders", '{"size": null}', 'info["action_mask"]:'),
        ("Game", "{}", 'infos[agent]["action_mask"]:'),
    ],
)
def test_a_mask_in_another_place_is_not_read_and_this_is_said(
    env: str, kwargs: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validate.main([f"--env=mask_envs:{env}", f"--env_kwargs={kwargs}"]) == 0
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if NOT_READ in line]
    assert f" {place}" in warning and REMEDY in warning
    assert ("how 0 to 3, where[0] 4 to 5, where[1] 6 to 8" in warning) == (env == "Orders")


def test_a_run_says_that_a_mask_is_not_read_and_one_that_is_read_is_not_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["--serial_mode=True", "--async_rl=False", "--num_workers=1", "--num_envs_per_worker=2", "--rollout=8"]
    run += ["--batch_size=16", "--num_batches_per_epoch=1", "--train_for_env_steps=32", f"--train_dir={tmp_path}"]
    assert train.main(["--env=mask_envs:ByInfo", *run]) == 0
    printed = capsys.readouterr()
    assert NOT_READ in printed.out + printed.err
    for env in ("Everywhere", "Unmasked"):
        assert validate.main([f"--env=mask_envs:{env}"]) == 0
        assert NOT_READ not in capsys.readouterr().err, env


def test_the_mask_is_named_too_where_an_action_that_it_forbids_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--env=mask_envs:Raising"]) == 1
    printed = capsys.readouterr().err
    assert "this action is not allowed" in printed
    assert f"action_masks(): {NOT_READ}" in printed


def test_the_layout_of_a_mask_is_shown_by_the_names_of_a_dict_action(capsys: pytest.CaptureFixture[str]) -> None:
    layout = "how 0 to 3, where[0] 4 to 5, where[1] 6 to 8"
    assert validate.main(["--env=mask_envs:Orders"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("action mask:")]
    assert line.split(maxsplit=2)[2] == layout
    assert validate.main(["--env=mask_envs:Orders", '--env_kwargs={"size": 8}']) == 2
    assert f"its actions have 9 choices: {layout}." in capsys.readouterr().err

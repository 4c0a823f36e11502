"""The report of runs: the numbers of the runs are in the page, their texts are escaped, and it needs no other file."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from path_options import check_users_folder

from asyncrl.contrib.report.command import _Options, main

EVIL = "<script>alert('x')</script> & \"quoted\" $\\frac"


class Page(HTMLParser):
    """The page's texts: titles, cells of tables by the heading above, captions; and all addresses and elements.

    Attributes:
        tables: of each heading, the rows of each table below it, the header among them.
        svg_texts: texts in charts.
        addresses: values of `src` and `href`.
        tags: names of all elements.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.captions: list[str] = []
        self.svg_texts: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self._heading, self._open = "", [""]
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br", "use", "path"):
            self._open.append(tag)
        if tag in ("h2", "figcaption", "th", "td", "title", "h1"):
            self._text = ""
        if tag == "table":
            self.tables.setdefault(self._heading, []).append([])
        if tag == "tr":
            self.tables[self._heading][-1].append([])

    def handle_data(self, data: str) -> None:
        self._text = getattr(self, "_text", "") + data
        if self._open[-1] == "text":
            self.svg_texts.append(data.strip())

    def handle_endtag(self, tag: str) -> None:
        if self._open[-1] == tag:
            self._open.pop()
        if tag == "h2":
            self._heading = self._text
        if tag == "h1":
            self.title = self._text
        if tag in ("th", "td"):
            self.tables[self._heading][-1][-1].append(self._text)
        if tag == "figcaption":
            self.captions.append(self._text)

    def rows(self, heading: str, number: int = 0) -> dict[str, dict[str, str]]:
        """A table as rows by their first cells."""
        header, *rows = self.tables[heading][number]
        return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


def write_run(folder: Path, records: Iterable[dict[str, Any]], **settings: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    config = {"env": "Walker-v9", "algo": "ppo", "train_for_env_steps": 2000, "eval_episodes": 10, **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def records(final: float) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for idx in range(1, 11):
        of_run = {"rollout/ep_rew_mean": final * idx / 10, "time/time_elapsed": 6.0 * idx, "time/fps": 333.0}
        faults = {"perf/restarts": 2 * (idx > 4), "perf/env_failures": int(idx > 7), "perf/failed_saves": 0}
        found.append({"env_steps": 200 * idx, **of_run, **faults, "train/loss": 1.0 / idx, "lag/mean": None})
    found.append({"env_steps": 2000, "eval/mean_reward": final + 5.0, "eval/std_reward": 4.0})
    return found


def page_of(out: Path, *arguments: object) -> tuple[Page, str]:
    assert main([*map(str, arguments), f"--out={out}"]) == 0
    text = out.read_text(encoding="utf-8")
    return Page(text), text


def test_the_numbers_of_a_run_are_in_its_page_and_its_texts_are_escaped(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run<b>$x^$", records(100.0), seed=3, env=EVIL, learning_rate=0.007, quiet=True)
    summary = {"status": "failed", "fps": 512.4, "best_return": 104.0, "error": EVIL}
    (run / "summary.json").write_text(json.dumps(summary))
    machine = {"cpu": EVIL, "cores": 4, "usable_cores": 2, "memory_bytes": 8 << 30, "gpus": [], "device": "cpu"}
    about = {"command": ["train", EVIL], "packages": {"torch": "2.99"}, "machine": machine, "git_commit": None}
    (run / "environment.json").write_text(json.dumps(about))
    (run / "videos").mkdir()
    for number in (0, 1000):
        (run / "videos" / f"step_{number:012d}.mp4").write_bytes(b"video %d" % number)
    page, text = page_of(tmp_path / "page.html", run)

    assert "script" not in page.tags and "<script" not in text and "link" not in page.tags
    video = f"data:video/mp4;base64,{base64.b64encode(b'video 1000').decode()}"
    assert [address for address in page.addresses if not address.startswith("#")] == [video]
    assert page.title == f"{EVIL}, ppo"
    row = page.rows("Runs")["run<b>$x^$"]
    assert row == {
        "state": "failed",
        "environment": f"{EVIL}, ppo",
        "steps": "2,000 of 2,000",
        "time": "1:00 min",
        "steps/s": "512",
        "return, last 100 episodes": "100.0",
        "last evaluation": "105.0 [102.1, 107.9], 10 episodes",  # 2.26216 x 4 / sqrt(10)
    }
    assert page.rows("Final scores")["run<b>$x^$"] == {
        "number": "1", "return, last 100 episodes": "100.0", "last evaluation": "105.0", "best checkpoint": "104.0",
    }  # fmt: skip
    settings = page.rows("Settings")
    assert (settings["learning_rate"]["default"], settings["learning_rate"]["run<b>$x^$"]) == ("0.0003", "0.007")
    assert settings["env"]["run<b>$x^$"] == EVIL
    faults = page.rows("Faults and restarts")["run<b>$x^$"]
    assert (faults["processes restarted"], faults["environments recreated"], faults["error"]) == ("2", "1", EVIL)
    _, *events = page.tables["Faults and restarts"][1]
    assert [row[1:] for row in events] == [
        ["1,000", "30 s", "2 processes restarted"],
        ["1,600", "48 s", "1 environments recreated"],
    ]
    machines = page.rows("Machine and versions")
    assert [machines[name]["run<b>$x^$"] for name in ("processor", "memory", "torch", "commit", "command")] == [
        EVIL, "8.0 GiB", "2.99", "-", f"train {EVIL}",
    ]  # fmt: skip
    # Curves: those that were recorded, their axes, and the run's name in the legend, as it is written.
    assert {"Return of training episodes, over steps", "train/loss", "time/fps"} <= set(page.captions)
    assert "lag/mean" not in page.captions
    assert {"run<b>$x^$", "environment steps of all workers"} <= set(page.svg_texts)


def test_runs_are_compared_by_groups_and_by_the_settings_that_differ(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"a_seed{seed}", records(10.0 * seed), seed=seed) for seed in (1, 2, 3)]
    runs.append(write_run(tmp_path / "b", records(70.0)[:-1], seed=1, gamma=0.5))
    page, _ = page_of(tmp_path / "page.html", *runs)
    assert page.title == "Walker-v9, ppo: 4 runs"
    scores = page.rows("Final scores")
    assert scores["a"]["number"] == "3" and scores["a"]["last evaluation"].startswith("25.0 [15.0, 35.0]")
    assert (scores["b"]["return, last 100 episodes"], scores["b"]["last evaluation"]) == ("70.0", "-")
    differences = page.rows("Settings")
    assert differences == {
        "seed": {"a_seed1": "1", "a_seed2": "2", "a_seed3": "3", "b": "1"},
        "gamma": {"a_seed1": "-", "a_seed2": "-", "a_seed3": "-", "b": "0.5"},
    }
    assert page.rows("Runs")["b"]["state"] == "no summary: it is training, or was killed"
    assert any(text.startswith("a (3 runs, mean") for text in page.svg_texts)


def test_several_policies_are_drawn_and_a_large_video_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.contrib.report.page._MOST_VIDEO_BYTES", 10)
    game = write_run(tmp_path / "game", [{"env_steps": 1, "time/fps": 10.0}])
    (game / "videos").mkdir()
    (game / "videos" / "step_000000000001.mp4").write_bytes(bytes(11))
    by_policy = [
        {"env_steps": n, "policy_0/rollout/ep_rew_mean": n, "policy_1/rollout/ep_rew_mean": 2.0 * n,
         "policy_0/time/total_env_steps": n, "policy_1/time/total_env_steps": n}
        for n in (1, 2, 3)
    ]  # fmt: skip
    policies = write_run(tmp_path / "policies", by_policy, num_policies=2)
    page, text = page_of(tmp_path / "page.html", game, policies)
    assert "policy_1/rollout/ep_rew_mean" in page.captions
    assert "too many for this page" in text and "video" not in page.tags
    assert "game has recorded no return of training episodes." in text


def test_the_page_is_in_the_first_runs_folder_and_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", [{"env_steps": 1}])
    assert main([str(run), "--title=<b>mine"]) == 0
    assert capsys.readouterr().out.startswith(f"wrote {run / 'report.html'}, ")
    assert "<h1>&lt;b&gt;mine</h1>" in (run / "report.html").read_text()
    for arguments, problem in (
        ([], "No run was given"),
        ([str(tmp_path / "other")], "There is no run"),
        ([str(run), "--outt=a"], "the nearest is --out"),
        ([str(run), "--out=/proc/a.html"], "Cannot write /proc/a.html"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert problem in error and len(error.splitlines()) == 1


def test_a_run_without_records_does_not_keep_others_from_being_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, empty = write_run(tmp_path / "run", records(10.0)), write_run(tmp_path / "empty", [])
    assert main([str(empty), str(run)]) == 0
    left_out, wrote = capsys.readouterr().out.splitlines()
    assert left_out.startswith(f"left out: {empty / 'metrics.jsonl'} has no record yet")
    assert wrote.startswith(f"wrote {run / 'report.html'}")


def test_a_path_may_begin_with_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    check_users_folder(_Options, ("out",), monkeypatch)

"""The documentation site: it builds without a warning, and its generated pages are complete."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from document_blocks import ROOT

from asyncrl.config.settings import SECTION_TITLES, all_settings
from asyncrl.observers import reports
from asyncrl.observers.metrics import METRICS, describe

TRAINED = ("TrainMetrics", "SacMetrics")


def test_every_figure_of_a_report_is_described() -> None:
    names = [f"train/{field.name}" for name in TRAINED for field in dataclasses.fields(getattr(reports, name))]
    names += [f"lag/{field.name}" for field in dataclasses.fields(reports.LagMetrics)]
    names += [f"perf/{role}_busy" for role in ("rollout", "inference", "learner")]
    names += [f"hogwild/{name}" for name in reports.Staleness({1: 1}).scalars()]
    names += [f"replay/{name}" for name in reports.SampleAges(1, 1.0, 1, 1.0).scalars()]
    assert [name for name in names if describe(name) is None] == []
    assert describe("policy_3/lag/mean") == METRICS["lag/mean"]
    assert describe("worker/12/env_steps") == METRICS["worker/N/env_steps"]
    assert describe("episode_extra_stats/goals scored") is not None
    assert describe("train/unknown") is describe("profile/rollout") is None


def test_every_name_that_an_observer_publishes_is_described() -> None:
    families = "rollout|eval|time|lag|replay|perf|worker|hyperparameters|hogwild"
    text = "".join(path.read_text() for path in sorted((ROOT / "asyncrl" / "observers").glob("*.py")))
    names = set(re.findall(rf'"((?:{families})/[a-z_/{{}}]+)"', text))
    assert {"time/fps", "worker/{worker_idx}/env_steps"} <= names
    example = {"{role}": "rollout", "lag/{name}": "lag/mean", "replay/{name}": "replay/size"}
    example |= {"hogwild/{name}": "hogwild/recomputed", "{name}": "NAME", "{worker_idx}": "3"}
    for variable, value in example.items():
        names = {name.replace(variable, value) for name in names}
    assert [name for name in sorted(names) if describe(name) is None] == []


def test_links_of_the_repository_become_links_of_the_site_and_wrong_ones_stay_wrong() -> None:
    pages = pytest.importorskip("site_pages")

    def turned(name: str, link: str) -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=name))
        return str(pages.on_page_markdown(f"see [it]({link}).", page, None, None)).removeprefix("see [it](")[:-2]

    assert turned("tutorial.md", "../README.md#start") == "index.md#start"
    assert turned("index.md", "docs/gpu.md") == turned("gpu.md", "gpu.md") == "gpu.md"
    assert turned("contributing.md", "docs/results.md") == "results.md"
    page = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"))
    assert pages.on_page_markdown("[docs/gpu.md](docs/gpu.md)", page, None, None) == "[On a GPU](gpu.md)"
    assert turned("python_api.md", "notebooks/cartpole.ipynb") == "notebook.md"
    assert turned("index.md", "gpu.md") == "../gpu.md", "it is wrong in the repository, so it is wrong in the site"
    assert turned("gpu.md", "docs/gpu.md") == "docs/gpu.md"


def test_every_test_that_the_page_on_faults_names_exists() -> None:
    """A name without a path is in the file that the same row named before it."""
    named, missing = 0, []
    for line in (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines():
        path = None
        for place, test in re.findall(r"`((?:[\w/]+/)?test_\w+\.py)?(?:::)?(test_\w+)?`", line):
            path = ROOT / "tests" / place if place else path
            text = path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""
            named += 1
            if not text or (test and f"\ndef {test}(" not in text):
                missing.append(f"{place}::{test}")
    assert (missing, named > 80) == ([], True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocstrings")
    place = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place / "site")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return place / "site"


@pytest.mark.long
def test_the_site_has_every_setting_and_every_metric(site: Path) -> None:
    settings, metrics = ((site / name).read_text(encoding="utf-8") for name in ("settings.html", "metrics.html"))
    assert {setting.section for setting in all_settings().values()} <= set(SECTION_TITLES)
    assert [name for name in all_settings() if f"<code>{name}</code>" not in settings] == []
    assert [name for name in all_settings() if f'id="{name}"' not in settings] == [], "settings.html#NAME is a link"
    assert [name for name in METRICS if f"<code>{name}</code>" not in metrics] == []
    assert "Trainer" in (site / "python_reference.html").read_text(encoding="utf-8")


@pytest.mark.long
def test_every_document_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    pages = [path.stem for path in (ROOT / "docs").glob("*.md")]
    assert [page for page in pages if f'href="{page}.html"' not in home] == []


def test_a_notebook_is_stored_with_its_outputs_and_without_an_error() -> None:
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
        assert all(outputs) and "image/png" in str(outputs), path
        assert not any(output["output_type"] in ("error", "stream") for each in outputs for output in each), path


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert "completed" in json.dumps(outputs[0]) and "image/png" in json.dumps(outputs[2])

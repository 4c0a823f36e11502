"""`asyncrl report`: writes one HTML page about runs, which needs no other file and no network.

    asyncrl report RUN... [--out=FILE.html] [--title=TEXT]

RUN is a run's folder or its name in train_dir; the run may still be training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from asyncrl.commands.runner import Command
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option
from asyncrl.config.value_types import GivenPath


class _Options(BaseModel):
    runs: tuple[Path, ...]
    out: GivenPath | None = option(None, "file to write [default report.html in the folder of the first run]")
    title: str | None = option(None, "title of the page [default environments and algorithms]")


class _Report(Command[_Options]):
    usage = "asyncrl report RUN..."
    description = (
        "Write one HTML page about runs: curves, final scores, settings and their differences, faults, machine and "
        "versions, a video. RUN is a run's folder or its name in train_dir; the run may still be training."
    )
    examples = (
        "asyncrl report train_dir/my_run",
        "asyncrl report train_dir/a_seed* train_dir/b_seed* --out=report.html --title='a against b'",
    )
    model = _Options
    words = "runs"

    def problems(self, given: Mapping[str, Any], options: _Options | None) -> Iterator[str]:
        if not given["runs"]:
            yield "No run was given: give at least one, by its folder's path or its name in train_dir."

    def run(self, options: _Options) -> int:
        from asyncrl.analysis.records import read_runs
        from asyncrl.contrib.report.page import render

        runs = read_runs(options.runs, print)
        page = render(runs, options.title)
        path = options.out or runs[0].path / "report.html"
        existed = path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(page, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"Cannot write {path}: {error.strerror or error}. Choose another --out.") from error
        print(f"wrote {path}, {path.stat().st_size / 1024:,.0f} KB" + (" (replaced)" if existed else ""), flush=True)
        return 0


main = _Report().main

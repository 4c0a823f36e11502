"""`python -m asyncrl.report`: writes one HTML page about runs, which needs no other file and no network.

    python -m asyncrl.report RUN... [--out=FILE.html] [--title=TEXT]

RUN is a run's folder or its name in train_dir; the run may still be training.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_help, option, option_flags, parse_options, separate_words, split_flags
from asyncrl.config.value_types import GivenPath

_DESCRIPTION = (
    "Write one HTML page about runs: curves, final scores, settings and their differences, faults, machine and "
    "versions, a video. RUN is a run's folder or its name in train_dir; the run may still be training."
)
_EXAMPLES = (
    "python -m asyncrl.report train_dir/my_run",
    "python -m asyncrl.report train_dir/a_seed* train_dir/b_seed* --out=report.html --title='a against b'",
)


class _Options(BaseModel):
    runs: tuple[Path, ...]
    out: GivenPath | None = option(None, "file to write [default report.html in the folder of the first run]")
    title: str | None = option(None, "title of the page [default environments and algorithms]")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for a user's mistake, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    flags = option_flags(_Options)
    if {"--help", "-h"} & set(arguments):
        print(format_help("python -m asyncrl.report RUN...", _DESCRIPTION, {}, flags, _EXAMPLES))
        return 0
    runs, flag_tokens = separate_words(arguments, flags)
    texts, wrong = split_flags(flag_tokens, {}, flags)
    options, refused = parse_options(_Options, {**texts, "runs": runs})
    problems = [*map(str, wrong), *refused]
    if not runs:
        problems.append("No run was given: give at least one, by its folder's path or its name in train_dir.")
    try:
        if options is None or problems:
            raise UsageError("\n".join(problems))
        _write(options)
    except UsageError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _write(options: _Options) -> None:
    from asyncrl.analysis.records import read_runs
    from asyncrl.contrib.report.page import read_report, render

    runs = read_runs(options.runs, print)
    page = render(read_report(runs, options.title))
    path = options.out or runs[0].path / "report.html"
    existed = path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}. Choose another --out.") from error
    print(f"wrote {path}, {path.stat().st_size / 1024:,.0f} KB" + (" (replaced)" if existed else ""), flush=True)

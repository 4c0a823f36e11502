"""`python -m asyncrl.plot`: draws a run, compares runs, or shows the speed-up of more workers or ranks.

    python -m asyncrl.plot trial RUN... [--window=100] [--out=FILE.png|.pdf|.svg]
    python -m asyncrl.plot compare RUN... --x=total_steps|per_worker_steps|per_rank_steps|processor_time|wall_time
        [--metric=eval] [--smooth=10]
    python -m asyncrl.plot speedup RUN...

Features have more commands (`PLOTS` of `asyncrl.config.hooks`); --help shows all. RUN is a run's folder or its name in
train_dir. Only its plots/ folder is written to.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from asyncrl.analysis.plot_command import help_text, read_options, run_command
from asyncrl.config.errors import UsageError
from asyncrl.runtime.reader import run_for_a_reader


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for a user's mistake, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if {"--help", "-h"} & set(arguments):
        print(help_text())
        return 0
    try:
        options = read_options(arguments)
        numbers = run_command(options, lambda line: print(line, flush=True))
    except UsageError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.prints_json:
        print(json.dumps(numbers, allow_nan=False), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))

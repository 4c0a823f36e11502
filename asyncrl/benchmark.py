"""`python -m asyncrl.benchmark`: compares sync and async in speed, returns, lag, time, CPU and memory.

    python -m asyncrl.benchmark --env=Humanoid-v5 --modes=sync,async --seeds=3

measures pure simulation and then each variant, in rounds. After a stop, the same command continues.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType

from asyncrl.analysis.benchmark import session
from asyncrl.analysis.benchmark.options import FLAGS, INSTEAD, read_options
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_help
from asyncrl.config.settings import all_settings
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.runtime.processes import process_context, start_loading_modules
from asyncrl.runtime.reader import run_for_a_reader

EXIT_DONE, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_TERMINATED = 0, 1, 2, 130, 143

_EXAMPLES = ("python -m asyncrl.benchmark --env=Humanoid-v5 --modes=sync,async --seeds=3",)
_DESCRIPTION = (
    "Measure pure simulation, then each combination of modes, inference modes, workers and environments, and write a "
    "report. --env is required, unless --config or --from_run names the environment. --train_for_env_steps=N measures "
    "runs that learn, too. All other flags of training are passed on to every run."
)


class _Terminated(Exception):
    """The process received SIGTERM."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    0 everything was measured, 1 something failed, 2 wrong usage, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if {"--help", "-h"} & set(arguments):
        own = {flag.name for flag in FLAGS}
        settings = {name: item for name, item in all_settings().items() if name not in own and name not in INSTEAD}
        print(format_help("python -m asyncrl.benchmark --env=ID", _DESCRIPTION, settings, FLAGS, _EXAMPLES))
        return EXIT_DONE
    previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        return _run(arguments)
    except (UsageError, EnvironmentFailed) as error:
        lines = str(error).splitlines() if isinstance(error, UsageError) else [str(error)]
        print(*(f"error: {line}" for line in lines), sep="\n", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    except (KeyboardInterrupt, _Terminated) as stop:
        print("Stopped. The same command continues with the missing measurements.", file=sys.stderr)
        return EXIT_TERMINATED if isinstance(stop, _Terminated) else EXIT_INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(arguments: Sequence[str]) -> int:
    options = read_options(arguments)
    start_loading_modules(process_context())
    benchmark = session.prepare(options)
    variants = ", ".join(variant.name for variant in benchmark.variants)
    print(
        f"{len(benchmark.tasks)} measurements of {benchmark.config.env} in {benchmark.output}: {variants}", flush=True
    )
    is_complete = session.run(benchmark, lambda text: print(text, flush=True))
    return EXIT_DONE if is_complete else EXIT_FAILED


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))

"""`python -m asyncrl.benchmark`: compares sync and async in speed, returns, lag, time, CPU and memory.

    python -m asyncrl.benchmark --env=Humanoid-v5 --modes=sync,async --seeds=3

measures pure simulation and then each variant, in rounds. After a stop, the same command continues.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence

from asyncrl.analysis.benchmark.options import FLAGS, INSTEAD, read_options
from asyncrl.cli.many_runs import run_many
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import format_help
from asyncrl.config.settings import all_settings
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.runtime.processes import process_context, start_loading_modules
from asyncrl.runtime.reader import run_for_a_reader, start_dropping_unread_output

_EXAMPLES = ("python -m asyncrl.benchmark --env=Humanoid-v5 --modes=sync,async --seeds=3",)
_DESCRIPTION = (
    "Measure pure simulation, then each combination of modes, inference modes, workers and environments, and write a "
    "report. --env is required, unless --config or --from_run names the environment. --train_for_env_steps=N measures "
    "runs that learn, too. All other flags of training are passed on to every run."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    0 everything was measured, 1 something failed, 2 wrong usage, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if {"--help", "-h"} & set(arguments):
        own = {flag.name for flag in FLAGS}
        settings = {name: item for name, item in all_settings().items() if name not in own and name not in INSTEAD}
        print(format_help("python -m asyncrl.benchmark --env=ID", _DESCRIPTION, settings, FLAGS, _EXAMPLES))
        return 0
    if_stopped = "Stopped. The same command continues with the missing measurements."
    return run_many(lambda: _run(arguments), if_stopped)


def _run(arguments: Sequence[str]) -> int:
    options = read_options(arguments)
    if importlib.util.find_spec("pandas") is None:
        raise UsageError('Benchmarks need the package pandas, which is not installed: pip install -e ".[benchmark]"')
    from asyncrl.analysis.benchmark import session  # imports pandas

    start_loading_modules(process_context())
    try:
        benchmark = session.prepare(options)
        start_dropping_unread_output()
        names = ", ".join(variant.name for variant in benchmark.variants)
        print(
            f"{len(benchmark.tasks)} measurements of {benchmark.config.env} in {benchmark.output}: {names}", flush=True
        )
        return 0 if session.run(benchmark, lambda text: print(text, flush=True)) else 1
    except EnvironmentFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(run_for_a_reader(main))

"""`asyncrl benchmark`: compares sync and async in speed, returns, lag, time, CPU and memory.

    asyncrl benchmark --env=Humanoid-v5 --modes=sync,async --seeds=3

measures pure simulation and then each variant, in rounds. After a stop, the same command continues.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

from asyncrl.analysis.benchmark.options import INSTEAD, BenchmarkOptions, find_problems
from asyncrl.commands.runner import Command
from asyncrl.config.errors import UsageError
from asyncrl.processes.children import process_context, start_loading_modules
from asyncrl.processes.reader import start_dropping_unread_output


class Benchmark(Command[BenchmarkOptions]):
    """Its exit code is 0 if everything was measured, and 1 if something failed."""

    usage = "asyncrl benchmark --env=ID"
    description = (
        "Measure pure simulation, then each combination of modes, inference modes, workers and environments, and write "
        "a report. --env is required, unless --config or --from_run names the environment. --train_for_env_steps=N "
        "measures runs that learn, too. All other flags of training are passed on to every run."
    )
    examples = ("asyncrl benchmark --env=Humanoid-v5 --modes=sync,async --seeds=3",)
    model = BenchmarkOptions
    instead = INSTEAD
    if_stopped = "Stopped. The same command continues with the missing measurements."

    def problems(self, given: Mapping[str, Any], options: BenchmarkOptions | None) -> Iterator[str]:
        return find_problems(given, options)

    def run(self, options: BenchmarkOptions) -> int:
        if importlib.util.find_spec("pandas") is None:
            text = 'Benchmarks need the package pandas, which is not installed: pip install -e ".[benchmark]"'
            raise UsageError(text)
        from asyncrl.analysis.benchmark import session  # imports pandas

        start_loading_modules(process_context())
        benchmark = session.prepare(options)
        start_dropping_unread_output()
        names = ", ".join(variant.name for variant in benchmark.variants)
        print(
            f"{len(benchmark.tasks)} measurements of {benchmark.config.env} in {benchmark.output}: {names}", flush=True
        )
        return 0 if session.run(benchmark, lambda text: print(text, flush=True)) else 1


main = Benchmark().main

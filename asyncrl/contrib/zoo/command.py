"""`asyncrl zoo`: lists the trained policies that come with asyncrl, with their returns.

asyncrl zoo
asyncrl enjoy zoo:Humanoid-v5
"""

from __future__ import annotations

from pydantic import BaseModel

from asyncrl.commands.runner import Command
from asyncrl.contrib.zoo.policies import SCHEME, mean_with_interval, results_of, zoo_names

_HEADER = ("policy", "deterministic actions", "sampled actions", "environment steps")


class _Options(BaseModel):
    pass


class _Zoo(Command[_Options]):
    usage = "asyncrl zoo"
    description = (
        "List the trained policies that come with asyncrl: mean returns, in brackets the 95 % intervals of the means. "
        "zoo:NAME stands for a run in evaluate, enjoy, export and --init_from."
    )
    examples = ("asyncrl zoo", "asyncrl enjoy zoo:Humanoid-v5", "asyncrl evaluate zoo:Hopper-v5 --episodes=20")
    model = _Options

    def run(self, options: _Options) -> int:
        rows = [_HEADER, *map(_row, zoo_names())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return 0


def _row(name: str) -> tuple[str, ...]:
    kinds = results_of(name)
    returns = (mean_with_interval(kinds.get(kind)) for kind in ("deterministic", "sampled"))
    return f"{SCHEME}{name}", *returns, f"{kinds['deterministic']['env_steps']:,}"


main = _Zoo().main

"""Finds the trained policies of the folder `zoo`, which `scripts/make_zoo.py` fills.

Each is a folder like a run's, with the files that `asyncrl push` uploads: settings, records, the newest checkpoint, and
`results.json` with the returns of its evaluation. It has the name of its environment, with `_` for `/`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.config.flags import nearest_hint
from asyncrl.storage.run_folder import MARKER

SCHEME = "zoo:"
RESULTS = "results.json"


def zoo_folder() -> Path:
    """Folder of the policies: inside the installed package, or in the checkout."""
    here = Path(__file__).resolve()
    inside = here.parent / "zoo"
    return inside if inside.is_dir() else here.parents[3] / "zoo"


def zoo_names() -> list[str]:
    """Names of all policies."""
    return sorted(path.parent.name for path in zoo_folder().glob(f"*/{MARKER}"))


def find(address: str) -> Path:
    """Returns the folder of the policy at `zoo:NAME`.

    Raises:
        UsageError: there is no policy of this name.
    """
    name, names = address.removeprefix(SCHEME).replace("/", "_"), zoo_names()
    if name not in names:
        known = f"`asyncrl zoo` lists the {len(names)} that there are" if names else "this installation has none"
        raise UsageError(f"There is no policy {address}: {known}{nearest_hint(name, names)}.")
    return zoo_folder() / name


def results_of(name: str) -> dict[str, dict[str, Any]]:
    """The evaluation of a policy, see `by_kind`."""
    (result,) = json.loads((zoo_folder() / name / RESULTS).read_text(encoding="utf-8"))
    return by_kind(result)


def by_kind(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts of an evaluation, as `asyncrl evaluate --json` and `asyncrl push` write it, by the kind of actions.

    A policy without noise has only `deterministic`, others have `sampled`, too.
    """
    kinds = {"deterministic": result["deterministic"]} if "deterministic" in result else {}
    return {result["actions"]: result, **kinds}


def mean_with_interval(played: dict[str, Any] | None) -> str:
    """The mean return of one kind of actions with its 95 % interval; a dash without this kind."""
    if played is None:
        return "-"
    low, high = played["ci95"]
    return f"{played['mean_reward']:.1f} [{low:.1f}, {high:.1f}]"

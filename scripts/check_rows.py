"""Checks that every row that is trained on is one step of one environment, with all combinations of settings.

    python scripts/check_rows.py                      # all cases without a recorded pass
    python scripts/check_rows.py --only=SAME_STEP     # those whose name contains this
    python scripts/check_rows.py --list               # show the names and the recorded outcomes, run nothing

Each case is a run of about two seconds on environments that record their steps (`tests/helpers/ledger_envs.py`);
`tests/helpers/row_checks.py` has the comparisons. Outcomes are appended to a JSON-lines file at once, so the script can
be stopped at any time and continued. It returns 1 if a case failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).resolve().parents[1]
# Child processes find modules in the same places.
sys.path[:0] = [str(_REPOSITORY), str(_REPOSITORY / "tests" / "helpers")]

from row_cases import Case, all_cases, run_case  # noqa: E402

from asyncrl.analysis.records import append_json_line, read_json_lines  # noqa: E402


def outcome_of(case: Case) -> dict[str, Any]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="asyncrl_rows_") as folder:
        try:
            _, counts = run_case(case, Path(folder))
            outcome: dict[str, Any] = {"passed": True, **dataclasses.asdict(counts)}
        except Exception:
            outcome = {"passed": False, "error": traceback.format_exc()}
    return {"case": str(case), "seconds": round(time.monotonic() - started, 1), **outcome}


def main() -> int:
    """Runs the missing cases; returns 1 if the last outcome of a case is a failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--output", type=Path, default=Path("check_rows.jsonl"), help="where outcomes are recorded")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after this time")
    parser.add_argument("--list", action="store_true", help="show the cases and the recorded outcomes, run nothing")
    options = parser.parse_args()
    outcomes = {outcome["case"]: outcome for outcome in read_json_lines(options.output)}
    cases = {str(case): case for case in all_cases() if options.only in str(case)}
    started = time.monotonic()
    for name, case in cases.items():
        if options.list or (name in outcomes and outcomes[name]["passed"]):
            continue
        if time.monotonic() - started > options.seconds:
            break
        outcomes[name] = outcome = outcome_of(case)
        append_json_line(options.output, outcome)
        print(f"{name}: {_describe(outcome)}", flush=True)
    if options.list:
        for name in cases:
            print(f"{name}: {_describe(outcomes.get(name))}")
    found = [outcomes[name] for name in cases if name in outcomes]
    num_failed = sum(not outcome["passed"] for outcome in found)
    print(f"{len(found) - num_failed} passed, {num_failed} failed, {len(cases) - len(found)} not run")
    return int(num_failed > 0)


def _describe(outcome: dict[str, Any] | None) -> str:
    if outcome is None:
        return "not run"
    if not outcome["passed"]:
        return "FAILED\n" + outcome["error"]
    return "{trained} rows of {lives} environments, {dropped} dropped, {rest} left at the end".format(**outcome)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the fork server need not be waited for

"""`python -m asyncrl.validate`: says what is wrong with a run's settings and what it would need, and starts nothing."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from asyncrl import preflight
from asyncrl.config.flags import ExtraFlag
from asyncrl.config.loading import LoadedConfig, load
from asyncrl.config.printing import format_plan, format_settings, plan_as_data
from asyncrl.runtime.run_folder import find_saved_config

_FLAGS = (
    ExtraFlag("json", "print one JSON object instead of text"),
    ExtraFlag("print_config", "print each setting and where it came from"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Returns:
        0 if the run could start, 2 if something is wrong with it, 1 if the environment raised.
    """
    loaded = load(
        sys.argv[1:] if argv is None else argv,
        _FLAGS,
        program="python -m asyncrl.validate",
        description="Check the settings of a training run and show what it would need. Takes the flags of training.",
        lenient=True,
        find_saved=find_saved_config,
    )
    result = preflight.run(loaded)
    if loaded.cli["json"]:
        print(json.dumps(_as_data(loaded, result), indent=2))
        return result.exit_code
    if loaded.preset is not None:
        print(f"{'preset:':<15} {loaded.preset} ({loaded.preset_path})")
    if result.spec is not None:
        print(f"{'environment:':<15} {result.spec}")
    print(format_plan(result.plan, result.arena_bytes, result.free_bytes))
    if loaded.cli["print_config"]:
        print(format_settings(loaded, result.plan))
    sys.stdout.flush()
    code = preflight.print_findings(result)
    if code == 0:
        print("ok: this run can start")
    return code


def _as_data(loaded: LoadedConfig, result: preflight.Preflight) -> dict[str, object]:
    data: dict[str, object] = {
        "ok": result.exit_code == 0,
        "preset": loaded.preset,
        "problems": [dataclasses.asdict(problem) for problem in result.problems],
        "warnings": [dataclasses.asdict(warning) for warning in result.warnings],
        "environment_failure": result.environment_failure,
        "environment": None if result.spec is None else result.spec.to_data(),
        "plan": plan_as_data(result.plan, result.arena_bytes, result.free_bytes),
    }
    if loaded.cli["print_config"]:
        data["config"] = {
            name: {"value": value, "origin": loaded.origins[name]} for name, value in loaded.config.model_dump().items()
        }
    return data


if __name__ == "__main__":
    sys.exit(main())

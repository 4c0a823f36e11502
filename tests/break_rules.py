"""Breaks each rule of the files `rules.yaml` in a copy of the repository, and reports whether its test notices.

    python tests/break_rules.py                   all rules; exit code 1 if a test does not notice
    python tests/break_rules.py gae_truncation    only the rules of these names
    python tests/break_rules.py --list            the table in tests/README.md; runs no test

A break replaces one text of one file, which must be there exactly once. The copy has the tracked files as they are in
the working tree, and every selected test must pass there before anything is broken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gymnasium  # noqa: F401  # what tests need, imported before the forks
import pydantic  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
TEST_LIMIT_S = 60  # a test that waits for ever because of a break has noticed it
COMPILE = "import hatch_build as h; h.compile_core(h.SOURCE, h.SOURCE / '_core.so')"
TESTS_FAILED = 1  # pytest's exit code; others say that the tests did not run


@dataclass(frozen=True)
class Rule:
    """A rule, how to break it, and the test that notices.

    Attributes:
        part: learning, faults or recovery.
        name: for the command line.
        says: the rule in one sentence.
        file: what is broken, relative to the repository.
        old, new: the text that is replaced, and what replaces it.
        test: arguments of pytest, as narrow as possible.
    """

    part: str
    name: str
    says: str
    file: str
    old: str
    new: str
    test: str

    @property
    def is_native(self) -> bool:
        """Whether the native core must be compiled."""
        return self.file.endswith(".c")


def read_rules() -> list[Rule]:
    """The rules of the core, then those of each feature."""
    paths = [REPOSITORY / "tests/rules.yaml", *sorted(REPOSITORY.glob("tests/contrib/*/rules.yaml"))]
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    return [
        Rule(part, name, **fields) for parts in files for part, rules in parts.items() for name, fields in rules.items()
    ]


def copy_repository(place: Path) -> None:
    command = ["git", "ls-files", "-z"]
    names = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, names):
        if (REPOSITORY / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, place / name)


def run_tests(place: Path, tests: Sequence[str], with_native_core: bool = False) -> tuple[int, str]:
    """Pytest's exit code and its output, from a fork of this process: torch is imported once for all rules."""
    if with_native_core:
        subprocess.run([sys.executable, "-c", COMPILE], cwd=place, check=True)
    else:
        (place / "asyncrl/native/_core.so").unlink(missing_ok=True)
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            os.chdir(place)
            if not with_native_core:
                os.environ["ASYNCRL_NO_NATIVE"] = "1"
            os.environ["PYTHONPATH"] = sys.path[0] = str(place)
            options = ["-n", "0", "-x", "-q", "--no-header", f"--timeout={TEST_LIMIT_S}", "-p", "no:cacheprovider"]
            code = pytest.main([*options, *tests])
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return code, output.read()


def break_rule(rule: Rule, place: Path) -> str | None:
    """Breaks a rule in the copy and mends it again; returns what is wrong with its test, None if it notices."""
    path = place / rule.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(rule.old, rule.new), encoding="utf-8")
    try:
        code, output = run_tests(place, rule.test.split(), rule.is_native)
    finally:
        path.write_text(text, encoding="utf-8")
    if code == 0 and " passed" not in output:
        return f"NOT TRIED: {rule.test} is skipped on this machine"
    if code == 0:
        return f"SURVIVED: {rule.test} passes without the rule"
    return None if code == TESTS_FAILED else f"DID NOT RUN:\n{output[-2000:]}"


def find_stale(rules: Sequence[Rule]) -> list[str]:
    """A sentence for each rule whose old text is not in its file exactly once."""
    found = []
    for rule in rules:
        path = REPOSITORY / rule.file
        count = path.read_text(encoding="utf-8").count(rule.old) if path.exists() else 0
        if count != 1:
            found.append(f"{rule.name}: NOT FOUND: {rule.file} has the old text {count} times")
    return found


def table_of(rules: Sequence[Rule]) -> str:
    lines = []
    for part in dict.fromkeys(rule.part for rule in rules):
        lines += ["", f"### {part.capitalize()}", "", "| name | rule | test |", "| --- | --- | --- |"]
        for rule in rules:
            if rule.part == part:
                tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in rule.test.split())
                lines.append(f"| {rule.name} | {rule.says} | {tests} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Breaks rules in a copy of the repository, to try their tests.")
    parser.add_argument("names", nargs="*", help="names of the rules to break; all by default")
    parser.add_argument("--list", action="store_true", help="print the table of rules and run no test")
    arguments = parser.parse_args()
    rules = read_rules()
    unknown = set(arguments.names) - {rule.name for rule in rules}
    if unknown:
        parser.error(f"no rule has the name {', '.join(sorted(unknown))}: see --list")
    if arguments.names:
        rules = [rule for rule in rules if rule.name in arguments.names]
    problems = find_stale(rules)
    print(*problems, sep="\n", end="\n" if problems else "")
    if arguments.list:
        print(table_of(rules))
        return int(bool(problems))
    stale = {problem.partition(":")[0] for problem in problems}
    rules = [rule for rule in rules if rule.name not in stale]
    with tempfile.TemporaryDirectory(prefix="asyncrl-rules-") as folder:
        place = Path(folder)
        copy_repository(place)
        for is_native in {rule.is_native for rule in rules}:
            tests = {test for rule in rules if rule.is_native == is_native for test in rule.test.split()}
            code, output = run_tests(place, sorted(tests), is_native)
            if code != 0:
                print(f"the tests must pass before anything is broken:\n{output[-4000:]}")
                return 1
        for number, rule in enumerate(rules, start=1):
            started = time.monotonic()
            problem = break_rule(rule, place)
            seconds = time.monotonic() - started
            print(
                f"{number}/{len(rules)} {rule.name}: {problem or 'failed as it should'} ({seconds:.0f} s)", flush=True
            )
            problems += [f"{rule.name}: {problem}"] if problem else []
    print(f"{len(rules)} rules were broken; {len(problems)} problems", *problems, sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())

"""Runs on the Hugging Face Hub. `hf://user/name` stands for the folder of a run, of which a repository has some files:

    config.yaml, environment.json, metrics.jsonl, episodes.json, results.json, .asyncrl-run
    checkpoints/[policy_N/][best/]checkpoint_*/   without the replay
    README.md, training.png, replay.mp4           for readers

Only these names are downloaded, those of the last line not at all. Reading them runs no code: tensors are safetensors,
the rest is JSON and YAML, and a checkpoint is used only if its checksums are right. But settings can name functions of
this machine, with arguments: an environment may be `subprocess:getoutput`. A run with such settings is not used from
its address; `pull` downloads it and says what it names, and its folder can be used. A cluster in its settings matters
only to a run that is resumed from the folder, so `pull` says that, too.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncrl.config.errors import UsageError
from asyncrl.config.settings import read_saved_values
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.run_folder import MARKER

SCHEME = "hf://"
CARD, PLOT, VIDEO, RESULTS = "README.md", "training.png", "replay.mp4", "results.json"
RUN_FILES = (MARKER, "config.yaml", "environment.json", "metrics.jsonl", "episodes.json", RESULTS)
"""Files of a run's folder that a repository may have, besides checkpoints."""

OLD_CHECKPOINTS = "checkpoints/*checkpoint_*/*"
"""Files in a repository that a later push replaces."""

_MODULES = ("import_modules", "callbacks")
_FUNCTIONS = ("env", "algo", "policy_mapping")
_CLUSTER = ("ray_address", "ray_runtime_env")
_PETTINGZOO = re.compile(r"pettingzoo:[a-z0-9_]+")
"""An environment of the package itself, which is looked up there and not called as a function."""

_ADDRESS = re.compile(r"(?:hf://)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


def parse_address(given: str) -> tuple[str, str | None]:
    """Returns repository and revision (branch, tag or commit) of `[hf://]user/name[@revision]`.

    Raises:
        UsageError: it is not such an address.
    """
    found = _ADDRESS.fullmatch(given)
    if found is None:
        raise UsageError(
            f"{given} is not an address of a run on the Hugging Face Hub: expected hf://user/name or "
            "hf://user/name@revision, where the revision is a branch, a tag or a commit."
        )
    return found["repo"], found["revision"]


def library() -> Any:
    """The client of the Hub.

    Raises:
        UsageError: it is not installed.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        text = "The Hugging Face Hub needs the package huggingface_hub, which is not installed"
        raise UsageError(f'{text}: pip install -e ".[hub]"')
    import huggingface_hub

    return huggingface_hub


def fetch(given: str) -> Path:
    """Downloads the run at an address and returns its folder in the cache of the Hub's client.

    What the cache has is not downloaded again, and is used if the Hub cannot be reached.

    Raises:
        UsageError: the address is wrong, the client is missing, or there is no such run.
    """
    repo, revision = parse_address(given)
    patterns = [*RUN_FILES, *(f"checkpoints/*checkpoint_*/{name}" for name in checkpoints.SHARED_FILES)]
    client = library()
    try:
        folder = Path(client.snapshot_download(repo, revision=revision, allow_patterns=patterns))
    except Exception as error:  # of several libraries; what they have in common is `Exception`
        raise UsageError(f"Cannot read {SCHEME}{repo}: {explain(error)}") from error
    if not checkpoints_in(folder):
        raise UsageError(f"{SCHEME}{repo} is not a run of asyncrl: it has no checkpoints/checkpoint_*/state.json.")
    return folder


def fetch_without_code(given: str) -> Path:
    """Like `fetch`, of a run whose settings name no code.

    Raises:
        UsageError: as `fetch`, or the settings name code.
    """
    folder = fetch(given)
    if named := named_code(folder):
        raise UsageError(
            f"{given} names code that would be imported or called: {', '.join(named)}. If you trust it, download it "
            f"with `asyncrl pull --repo={given.removeprefix(SCHEME)}` and give the folder."
        )
    return folder


def named_code(run: Path) -> list[str]:
    """Settings in a run's folder, its checkpoints included, that name code, as `name=value`.

    Raises:
        UsageError: a file of them cannot be read.
    """
    found: dict[str, None] = {}
    for settings in _settings_in(run):
        for name in _MODULES:
            if settings.get(name):
                found[f"{name}={settings[name]}"] = None
        for name in _FUNCTIONS:
            value = str(settings.get(name, ""))
            if ":" in value and not _PETTINGZOO.fullmatch(value):
                has_arguments = name == "env" and settings.get("env_kwargs")
                arguments = f" with env_kwargs={settings['env_kwargs']}" if has_arguments else ""
                found[f"{name}={value}{arguments}"] = None
    return list(found)


def named_clusters(run: Path) -> list[str]:
    """Settings in a run's folder of a cluster that a resumed run connects to, as `name=value`.

    Raises:
        UsageError: a file of them cannot be read.
    """
    found = dict.fromkeys(
        f"{name}={settings[name]}"
        for settings in _settings_in(run)
        for name in _CLUSTER
        if settings.get(name, "auto") not in ("auto", {})
    )
    return list(found)


def _settings_in(run: Path) -> Iterator[dict[str, Any]]:
    """All settings in a run's folder: of the run, of each of its policies, and the copies in checkpoints.

    Raises:
        UsageError: a file of them cannot be read.
    """
    read: list[Any] = []
    for path in (run / "config.yaml", *(folder / checkpoints.STATE_FILE for folder in checkpoints_in(run))):
        try:
            if path.suffix == ".json":
                read.append(json.loads(path.read_text(encoding="utf-8")))
            elif path.exists():
                read.append(read_saved_values(path))  # as a run reads it
        except (OSError, ValueError) as error:
            raise UsageError(f"Cannot read {path}: {explain(error)}") from error
    while read:
        content = read.pop()
        if isinstance(content, dict):
            yield content
            read += [value for name, value in content.items() if name != "env_kwargs"]
        elif isinstance(content, list):
            read += content


def checkpoints_in(run: Path) -> list[Path]:
    """All checkpoints in a run's folder: of all policies, newest, milestones and best."""
    return [state.parent for state in sorted((run / "checkpoints").rglob(checkpoints.STATE_FILE))]


def explain(error: Exception) -> str:
    """The first lines of the client's error, which names the address and what may be missing, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"

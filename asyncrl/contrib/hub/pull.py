"""`asyncrl pull`: downloads a run from the Hugging Face Hub to a run's folder.

    asyncrl pull --repo=user/name --experiment=my_run

The folder is like that of a run that was trained here: it can be evaluated, plotted, and trained on.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import BaseModel

from asyncrl.commands.runner import Command
from asyncrl.config.errors import UsageError
from asyncrl.config.flags import option
from asyncrl.contrib.hub import repository as hub
from asyncrl.storage import checkpoint as checkpoints
from asyncrl.storage.locating import TRAIN_DIR
from asyncrl.storage.run_folder import MARKER, RunFolder, checked_run_path, shown_path


class _Options(BaseModel):
    repo: str | None = option(None, "repository on the Hub, user/name or user/name@REVISION (branch, tag or commit)")
    experiment: str | None = option(None, "name of the run here [default the repository's]")
    train_dir: str = option(TRAIN_DIR, "folder that holds all runs [default train_dir]")


class _Pull(Command[_Options]):
    usage = "asyncrl pull --repo=USER/NAME"
    description = "Download a run from the Hugging Face Hub, to evaluate, plot or resume it."
    examples = (
        "asyncrl pull --repo=user/name",
        "asyncrl pull --repo=user/name@v1.0 --experiment=my_run",
    )
    model = _Options

    def run(self, options: _Options) -> int:
        if options.repo is None:
            raise UsageError("Give the run on the Hub: --repo=USER/NAME.")
        repo, _ = hub.parse_address(options.repo)
        name = options.experiment or repo.partition("/")[2]
        path = checked_run_path(options.train_dir, name)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise UsageError(f"{path} exists: give another --experiment.")
        fetched = hub.fetch(options.repo)
        found = hub.checkpoints_in(fetched)
        for checkpoint in found:
            checkpoints.load(checkpoint)  # checks every file before any is copied
        env = _env_of(fetched)
        if named := hub.named_code(fetched):
            print(f"Its settings name code of this machine that a run or an evaluation imports: {', '.join(named)}")
        if named := hub.named_clusters(fetched):
            print(f"Its settings name a cluster that a run resumed from it connects to: {', '.join(named)}")
        with RunFolder.create(options.train_dir, name, "resume") as folder:
            try:
                _copy(fetched, folder.path, found)
            except BaseException:
                shutil.rmtree(folder.path, ignore_errors=True)
                raise
        print(f"{shown_path(folder.path)}: {env}, {len(found)} checkpoint{'s' * (len(found) != 1)}", flush=True)
        return 0


def _env_of(run: Path) -> str:
    """The environment of a downloaded run. To read all its settings would import the modules that they name."""
    path = run / "config.yaml"
    try:
        return str(yaml.safe_load(path.read_text(encoding="utf-8"))["env"])
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
        raise UsageError(f"{path} does not hold the settings of a run: {hub.explain(error)}.") from error


def _copy(fetched: Path, run: Path, found: Sequence[Path]) -> None:
    for name in hub.RUN_FILES:
        if (fetched / name).exists() and name != MARKER:
            shutil.copyfile(fetched / name, run / name)
    for checkpoint in found:
        target = run / checkpoint.relative_to(fetched)
        target.mkdir(parents=True)
        for file in checkpoints.SHARED_FILES:
            shutil.copyfile(checkpoint / file, target / file)


main = _Pull().main

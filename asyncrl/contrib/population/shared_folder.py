"""A population of runs, perhaps on several machines, whose exchange is a folder: `pbt_shared_dir`.

    FOLDER/NAME.npz     the newest state of the run NAME: objective, hyperparameters, weights and statistics

Each run writes its own file, once in each of its periods, under another name first; so a reader finds a whole file, the
old one or the new one. A run that has not written for three of its periods, and for a minute at least, does not count
any more.
"""

from __future__ import annotations

import json
import os
import socket
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.config.errors import UsageError
from asyncrl.config.fixed_settings import fixed_settings_digest
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.population.turns import Member
from asyncrl.storage.run_folder import replacing, run_path

_STALE_PERIODS = 3
_LEAST_STALE_S = 60.0
_NOT_A_MEMBER = (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile)


class SharedFolder:
    """The folder as one run sees it.

    Attributes:
        name: name of this run, which is that of its experiment.
    """

    def __init__(self, path: Path, config: TrainConfig) -> None:
        """Makes the folder if it is missing.

        Raises:
            UsageError: it cannot be used, or another run of this name is a member.
        """
        assert config.experiment is not None
        self.name = config.experiment
        self._path = path.absolute()  # an environment may change the working directory
        self._own = self._path / f"{self.name}.npz"
        where = run_path(config.train_dir, config.experiment).resolve()
        self._about: dict[str, Any] = {"run": f"{socket.gethostname()}:{where}", "env": config.env_id}
        self._about |= {"algo": config.algo, "fixed_settings": fixed_settings_digest(config)}
        self._published_at = time.monotonic()
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK | os.X_OK):
                raise UsageError(f"--pbt_shared_dir={path} cannot be used: it is not writable.")
            about = _read_about(self._own)
        except OSError as error:
            raise UsageError(f"--pbt_shared_dir={path} cannot be used: {error.strerror or error}.") from error
        if about is not None and about["run"] != self._about["run"]:
            raise UsageError(
                f"--pbt_shared_dir={path} has a member {self.name!r} already, the run {about['run']}: choose another "
                f"--experiment, or delete {self._own} if that run was moved."
            )

    def publish(self, own: Member, block: npt.NDArray[np.float32]) -> None:
        """Writes the state of this run, with the weights and statistics `block` [N].

        Raises:
            OSError: the file cannot be written.
        """
        now = time.monotonic()
        period_s, self._published_at = now - self._published_at, now
        about = {**self._about, "num_weights": len(block), "objective": own.objective}
        about |= {"values": dict(own.values), "period_s": period_s}
        with replacing(self._own) as file:
            np.savez(file, about=np.array(json.dumps(about)), block=block)
            file.flush()
            os.fsync(file.fileno())

    def members(self, num_weights: int) -> tuple[dict[str, Member], list[str]]:
        """The runs that count, this one among them, and the names of those whose weights mean something else.

        Those have another environment, algorithm or number of weights, or differ in a setting that gives weights their
        meaning (`fixed_settings_digest`). Times are those that the file system has given to the files, so the clocks of
        machines do not matter.

        Args:
            num_weights: elements of this run's block of weights.

        Raises:
            OSError: the folder cannot be read, or this run has not published yet.
        """
        now = self._own.stat().st_mtime
        found: dict[str, Member] = {}
        others: list[str] = []
        for path in sorted(self._path.glob("*.npz")):
            about = _read_about(path)
            if about is None:
                continue
            try:
                limit_s = max(_LEAST_STALE_S, _STALE_PERIODS * float(about["period_s"]))
                is_stale = now - path.stat().st_mtime > limit_s
                member = Member(float(about["objective"]), {name: float(of) for name, of in about["values"].items()})
            except _NOT_A_MEMBER:
                continue
            is_same = all(about.get(name) == self._about[name] for name in ("env", "algo", "fixed_settings"))
            if not is_same or about.get("num_weights") != num_weights:
                others.append(path.stem)
            elif not is_stale or path == self._own:
                found[path.stem] = member
        return found, others

    def weights_of(self, name: str) -> npt.NDArray[np.float32]:
        """The weights and statistics of a member [N].

        Raises:
            OSError: the file cannot be read.
            ValueError: a number in it is not finite.
        """
        with np.load(self._path / f"{name}.npz", allow_pickle=False) as content:
            block: npt.NDArray[np.float32] = content["block"]
        if not np.isfinite(block).all():
            raise ValueError(f"the weights of {name} are not finite")
        return block


def _read_about(path: Path) -> dict[str, Any] | None:
    """What a member's file says about it; None if there is no such file, or another program wrote it."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as content:
            about = json.loads(str(content["about"]))
            return {**about, "run": str(about["run"])}
    except _NOT_A_MEMBER:
        return None

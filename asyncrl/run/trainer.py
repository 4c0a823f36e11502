"""A run that a program starts: settings and callbacks in, a result out."""

from __future__ import annotations

from collections.abc import Sequence

from asyncrl.config.env_maker import EnvMaker
from asyncrl.config.errors import UsageError
from asyncrl.config.loading import load_given
from asyncrl.config.problems import ConfigError
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.observers.observer import Observer
from asyncrl.observers.progress import ProgressBar
from asyncrl.observers.writers import LogMessages
from asyncrl.run.result import RunResult
from asyncrl.run.session import Session
from asyncrl.runtime.run_folder import find_saved_config


class Trainer:
    """Trains a policy, as `python -m asyncrl.train` does.

    Example:
        result = Trainer(TrainConfig(env="CartPole-v1", train_for_env_steps=100_000)).run()

    A script that starts a run in several processes calls `run` under `if __name__ == "__main__":`, because each
    process imports the script.
    """

    def __init__(self, config: TrainConfig, callbacks: Sequence[Observer] = (), *, preset: str | None = None) -> None:
        """Starts nothing.

        Args:
            config: settings. Those that it was not given come from the run of that name if it is resumed, else from
                the preset for the environment and the defaults of the algorithm.
            callbacks: watch and steer the run; called in their order. Of several ranks, rank 0 calls its own.
            preset: name of another preset; `none` for none.
        """
        wrong = [callback for callback in callbacks if not isinstance(callback, Observer)]
        if wrong:
            raise UsageError(f"The callback {wrong[0]!r} is not possible: expected an object of asyncrl.Observer.")
        self._config = config
        self._callbacks = list(callbacks)
        self._preset = preset
        self._session: Session | None = None

    def run(self) -> RunResult:
        """Trains until a limit, a callback or Ctrl-C ends the run.

        It may be called again: a run with a name (`experiment`) then resumes, others begin again in a new folder.

        Returns:
            How the run ended, its records and the policy.

        Raises:
            UsageError: something is wrong with the settings; a `ConfigError` has every problem.
            asyncrl.envs.errors.EnvironmentFailed: the environment raised when it was first tried.
            asyncrl.runtime.checkpoint.CheckpointError: no checkpoint of a resumed run can be used.
            asyncrl.runtime.processes.RunFailed: the run could not continue; the exception of a callback is its cause.
            KeyboardInterrupt: Ctrl-C was pressed twice.
        """
        shows_messages = any(isinstance(callback, ProgressBar) for callback in self._callbacks)
        observers = [*self._callbacks, *(() if shows_messages else (LogMessages(),))]
        maker = self._config.env if isinstance(self._config.env, EnvMaker) else None
        session = Session(lambda: load_given(self._config, self._preset, find_saved_config), observers, maker)
        with session:
            self._session = session
            checked = session.check()
            for warning in checked.warnings:
                session.run.say(f"warning: {warning.sentence('Better')}")
            if checked.problems:
                raise ConfigError(checked.problems)
            if checked.environment_failure is not None:
                raise EnvironmentFailed(checked.environment_failure)
            return session.train()

    def stop(self, reason: str = "") -> None:
        """Asks a run to end and save, from another thread."""
        if self._session is not None:
            self._session.run.stop(reason)

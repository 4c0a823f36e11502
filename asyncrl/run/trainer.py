"""The public interface to a run: settings and callbacks in, a result out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asyncrl.config.env_maker import EnvMaker
from asyncrl.config.errors import ConfigError, UsageError
from asyncrl.config.loading import load_given
from asyncrl.config.schema import TrainConfig
from asyncrl.envs.errors import EnvironmentFailed
from asyncrl.observers.observer import Observer, refuse_unknown_events
from asyncrl.observers.progress import ProgressBar
from asyncrl.observers.writers import LogMessages
from asyncrl.run.result import RunResult
from asyncrl.run.session import Session
from asyncrl.storage.run_folder import find_saved_config


class Trainer:
    """Trains a policy, like `asyncrl train`, but from Python: in a script, a notebook or a thread.

    It prints nothing and reads no `sys.argv`. Messages go to the callbacks, and to the logger `asyncrl` if none of them
    is a `ProgressBar`.

    Example:
        if __name__ == "__main__":
            config = TrainConfig(env="CartPole-v1", train_for_env_steps=100_000)
            result = Trainer(config, callbacks=[ProgressBar()]).run()
            print(result.status, result.summary.ep_rew_mean)
            policy = result.policy()

    The processes of a run import the script that started it, so the call must be under `if __name__ == "__main__":`.
    A notebook, and a run with `serial_mode=True`, need no such line.
    """

    def __init__(
        self, config: TrainConfig, callbacks: Sequence[Observer] | Observer = (), *, preset: str | None = None
    ) -> None:
        """Starts nothing; `run` does.

        Args:
            config: settings. A setting that it was not given comes from the saved run if `experiment` names one, else
                from the preset for the environment and from the defaults of the algorithm.
            callbacks: observers that watch and steer the run, called in this order, or a single one. With several ranks
                only those of rank 0 are called.
            preset: name of a preset to use instead of the one for the environment; `none` for no preset.

        Raises:
            UsageError: `config` is not a `TrainConfig`; a callback is not an `Observer`, or has a method that is named
                like an event and is not one.
        """
        if not isinstance(config, TrainConfig):
            raise UsageError(f"The first argument of Trainer is a TrainConfig(env=...), got {config!r}.")
        given = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
        wrong = [callback for callback in given if not isinstance(callback, Observer)]
        if wrong:
            raise UsageError(f"The callback {wrong[0]!r} is not possible: expected an object of asyncrl.Observer.")
        for callback in given:
            refuse_unknown_events(callback)
        self._config = config
        self._callbacks = given
        self._preset = preset
        self._session: Session | None = None

    def run(self) -> RunResult:
        """Trains until a limit is reached, a callback stops the run, or the user presses Ctrl-C.

        It may be called again: with `experiment` the run resumes, without it a new run starts in a new folder.

        Returns:
            How the run ended, its records and the policy.

        Raises:
            UsageError: settings are wrong; a `ConfigError` has every problem. Nothing has started.
            asyncrl.EnvironmentFailed: the environment raised when it was made and stepped once.
            asyncrl.storage.checkpoint.CheckpointError: no checkpoint of the resumed run can be used.
            asyncrl.RunFailed: the run could not continue; if a callback raised, its exception is the cause.
            optuna.TrialPruned: a callback raised it; the run has stopped and saved.
            KeyboardInterrupt: Ctrl-C was pressed twice.
        """
        shows_messages = any(isinstance(callback, ProgressBar) for callback in self._callbacks)
        observers = [*self._callbacks, *(() if shows_messages else (LogMessages(),))]
        maker = self._config.env if isinstance(self._config.env, EnvMaker) else None
        session = Session(lambda: load_given(self._config, self._preset, find_saved_config), observers, maker)
        with session:
            self._session = session
            session.read_settings()
            checked = session.check()
            if session.is_first_rank and not session.loaded.config.quiet:
                session.run.say(session.loaded.preset_sentence)
            for warning in checked.warnings:
                session.run.say(f"warning: {warning.sentence('Better')}")
            if checked.problems:
                raise ConfigError(checked.problems)
            if checked.environment_failure is not None:
                raise EnvironmentFailed(checked.environment_failure)
            result = session.train()
        if session.run.pruning is not None:
            raise session.run.pruning
        return result

    def stop(self, reason: str = "") -> None:
        """Asks the run to end after the current update and to save; may be called from any thread."""
        if self._session is not None:
            self._session.run.stop(reason)

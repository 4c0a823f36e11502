"""`asyncrl train`: trains a policy. Flags in, a `Session`, sentences and an exit code out."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial

from asyncrl.commands.console import PRINT_CONFIG, Console, format_settings, print_end, print_failure, print_findings
from asyncrl.commands.runner import TrainingCommand, print_error
from asyncrl.processes.children import RunFailed
from asyncrl.processes.main_guard import refuse_to_run_while_imported
from asyncrl.processes.reader import start_dropping_unread_output
from asyncrl.processes.signals import StopAtOnce
from asyncrl.run.session import EndedByFirstRank, Session, exit_code_of
from asyncrl.storage.checkpoint import CheckpointError


class _Train(TrainingCommand[Sequence[str]]):
    """Its exit codes are 0 done, 1 failed, 2 mistake of the user, 3 processes or environments failed too
    often, 130 stopped by Ctrl-C, 143 stopped by SIGTERM, 129 by SIGHUP.
    """

    description = "Train a policy on a Gymnasium environment."
    examples = (
        "asyncrl train --env=CartPole-v1 --train_for_env_steps=200000",
        "asyncrl train --env=my_module:MyEnv-v0 --experiment=my_run --num_workers=8",
        "asyncrl train --experiment=my_run    (resumes it with its settings; flags override them)",
    )

    def main(self, argv: Sequence[str] | None = None) -> int:
        refuse_to_run_while_imported()
        # Imports have taken about their processor time. The age of the process would include the time before it became
        # Python, such as that of the shell in `bash -c "...; exec python ..."`.
        self._started_at = time.monotonic() - (time.process_time() if argv is None else 0.0)
        return super().main(argv)

    def read(self, arguments: Sequence[str]) -> Sequence[str]:
        return arguments

    def run(self, options: Sequence[str]) -> int:
        settings = partial(self.load, options, [PRINT_CONFIG])
        session = Session(settings, [Console()], started_at=self._started_at, answers_signals=True)
        try:
            with session:
                session.exit_code = _run(session)
            return session.exit_code
        except CheckpointError as error:
            print_error(error)
            return exit_code_of(error)
        except EndedByFirstRank as end:
            return end.exit_code
        except StopAtOnce as error:
            print(error, file=sys.stderr, flush=True)
            _print_end(session)
            return error.exit_code
        except RunFailed as failure:
            _print_end(session)
            if session.folder is None:
                print(f"error: {failure.summary}", failure.details, sep="\n", file=sys.stderr)
            else:
                print_failure(failure, session.loaded.config, session.folder, not session.has_shown_failure)
            return failure.exit_code


def _run(session: Session) -> int:
    """Checks everything, then trains."""
    printed = session.read_settings().cli.get(PRINT_CONFIG.name, False)
    if not printed:
        start_dropping_unread_output()
    checked = session.check(is_to_train=not printed)
    if printed:
        print(format_settings(session.loaded, checked.plan, printed))
        return print_findings(checked)
    config = session.loaded.config
    if session.is_first_rank and checked.exit_code == 0 and not config.quiet:
        print(session.loaded.preset_sentence, flush=True)
    if (code := print_findings(checked)) != 0 or checked.spec is None:
        return code
    session.train()
    _print_end(session)
    return session.exit_code


def _print_end(session: Session) -> None:
    if session.summary is not None and session.folder is not None and not session.loaded.config.quiet:
        print_end(session.summary, session.loaded.config, session.folder)


main = _Train().main

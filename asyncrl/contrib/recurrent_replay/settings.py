"""Setting: rows that warm up recurrent states."""

from __future__ import annotations

from asyncrl.config.sections.section import ACTOR_CRITICS, Section, section
from asyncrl.config.value_types import NonNegativeInt

_replay = section("replay")


class RecurrentReplaySettings(Section):
    """Recurrent replay."""

    burn_in: NonNegativeInt = _replay(
        16,
        "with use_rnn: rows before each sequence that only warm up recurrent states",
        algo=ACTOR_CRITICS,
        use_rnn=(True,),
    )

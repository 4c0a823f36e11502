"""The option `--opponents`, without torch."""

from __future__ import annotations

from asyncrl.commands.player_options import PlayerOption
from asyncrl.config.hooks import hooks

_NAMES = "random, runs and checkpoints" + "".join(
    f", or {name}, which are {what}" for name, (_, what) in hooks("OPPONENTS").items()
)

OPTION = PlayerOption(
    name="opponents",
    descriptions={
        "evaluate": f"with several agents: play matches against these, separated by commas: {_NAMES}; the policy plays "
        "each agent in --episodes episodes, the opponent all others",
        "enjoy": f"with several agents: show matches against these, separated by commas: {_NAMES}. Opponents and the "
        "policy's place change with the episodes [default of --episodes: one for each pairing, at least 3]",
    },
    examples={
        "evaluate": "asyncrl evaluate my_game --opponents=random,my_older_game --episodes=200",
        "enjoy": "asyncrl enjoy my_game --opponents=random,my_older_game",
    },
    evaluate="asyncrl.contrib.matches.commands:evaluate",
    make_teams="asyncrl.contrib.matches.commands:make_teams",
    plays="matches",
    excludes=("compare", "episodes_csv"),
)

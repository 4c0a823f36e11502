"""The option `--record`, without torch."""

from __future__ import annotations

from asyncrl.commands.player_options import PlayerOption

OPTION = PlayerOption(
    name="record",
    descriptions={
        "evaluate": "write the episodes to a new Minari dataset of this name, such as hopper/expert-v0, with sampled "
        "actions unless --deterministic is given; needs minari and h5py, and MINARI_DATASETS_PATH is where it goes "
        "[default ~/.minari/datasets]",
    },
    examples={"evaluate": "asyncrl evaluate my_run --episodes=200 --record=hopper/expert-v0"},
    evaluate="asyncrl.contrib.minari.recording:evaluate",
    plays="the policy to record it",
    excludes=("compare", "episodes_csv", "video"),
)

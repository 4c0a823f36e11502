"""Settings: DQN."""

from __future__ import annotations

from asyncrl.config.sections.section import Section, section
from asyncrl.config.value_types import Fraction

_replay = section("replay", algo=("dqn",))


class DqnSettings(Section):
    """DQN."""

    prioritized_replay: bool = _replay(
        False, "DQN: draw transitions whose errors were large more often, and weight them less (proportional variant)"
    )
    prioritized_replay_alpha: Fraction = _replay(
        0.6,
        "power of the errors by which transitions are drawn; 0 draws all of them equally often",
        prioritized_replay=(True,),
    )
    prioritized_replay_beta: Fraction = _replay(
        0.4,
        "power of the weights at the start, which rises to 1 at the end of the run; 1 corrects the draw fully",
        prioritized_replay=(True,),
    )
    dueling: bool = _replay(
        False, "DQN: the network predicts the value of a state and how much better each choice is", fixed="networks"
    )
    exploration_initial_eps: Fraction = _replay(1.0, "DQN: probability of a choice at random at the start")
    exploration_final_eps: Fraction = _replay(0.05, "DQN: the same after exploration_fraction of the run")
    exploration_fraction: Fraction = _replay(
        0.1, "DQN: share of the run over which the probability of a choice at random falls"
    )

"""Settings: self-play."""

from __future__ import annotations

from asyncrl.config.sections.section import Opponents, Section, section
from asyncrl.config.value_types import Fraction, PositiveInt

_self_play = section("self_play")


class SelfPlaySettings(Section):
    """Self-play."""

    self_play: bool = _self_play(
        False, "play a share of the games against a pool of frozen earlier versions of the policy; PPO and A2C"
    )
    self_play_pool_share: Fraction = _self_play(
        0.5,
        "share of the games in which the policy plays one agent, drawn at random, and one member of the pool, each "
        "equally likely, plays all others; in other games, and while the pool is empty, the policy plays all agents",
        self_play=(True,),
    )
    self_play_pool_size: PositiveInt = _self_play(
        10, "members of the pool; when it is full the oldest one leaves", self_play=(True,)
    )
    self_play_add_every_env_steps: PositiveInt = _self_play(
        100_000, "environment steps after which the policy of that moment enters the pool", self_play=(True,)
    )

    @property
    def opponents(self) -> Opponents | None:
        """The members of the pool."""
        if not self.self_play:
            return super().opponents
        return Opponents("self_play", self.self_play_pool_size, "asyncrl.contrib.self_play.mapping:make_mapping")

    @property
    def has_comparable_returns(self) -> bool:
        """Returns also depend on how strong the opponents are."""
        return super().has_comparable_returns and not self.self_play

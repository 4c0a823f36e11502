"""Self-play: the pool of frozen earlier versions of the policy, and the ratings of policy and members.

    learner --published weights--> add_if_due --> self_play/checkpoint_*, weights of an opponent in the arena
    rollout workers --matches (notes of reports)--> rate --> Elo --> record --> records, self_play/ratings.json

It runs in the runner's process, between two waits of its control loop. It is the only writer of the opponents' weights,
and of its folder, whose contents are the pool of a run that resumes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from asyncrl.buffers.weights import WeightsChannel
from asyncrl.contrib.self_play.mapping import MatchRecord
from asyncrl.contrib.self_play.settings import SelfPlaySettings
from asyncrl.models.factory import make_acting_model
from asyncrl.models.flat import FlatParameters, block_size, read_block, write_block
from asyncrl.processes.own_settings import with_own_settings
from asyncrl.run.setup import RunSetup
from asyncrl.storage import checkpoint
from asyncrl.storage.checkpoint import Checkpoint, CheckpointError
from asyncrl.storage.run_folder import write_text_atomically

INITIAL_ELO = 1200.0
K_FACTOR = 16.0
"""A win against an equal opponent changes both ratings by half of it."""

WINDOW = 100
"""Games against the pool over which the win rate is averaged."""

RATINGS = "ratings.json"


def elo_change(elo: float, opponent_elo: float, score: float) -> float:
    """Change of a player's rating after a game (Elo 1978); the opponent's changes by the same with the other sign.

    Args:
        elo: rating of the player before the game.
        opponent_elo: that of the opponent.
        score: 1 for a win of the player, 0.5 for a draw, 0 for a loss.
    """
    expected = 1.0 / (1.0 + math.pow(10.0, (opponent_elo - elo) / 400.0))
    return K_FACTOR * (score - expected)


@dataclass
class Member:
    """A frozen version of the policy.

    Attributes:
        env_steps: environment steps that it was trained on, which name it.
        elo: its rating; at first that of the policy when the member was frozen.
        won, drawn, lost: games that the policy won, drew and lost against it.
    """

    env_steps: int
    elo: float
    won: int = 0
    drawn: int = 0
    lost: int = 0


class SelfPlayPool:
    """The pool of one start of a run.

    Attributes:
        elo: rating of the policy that trains.
        members: by the number of the opponent that plays as this member.
    """

    @with_own_settings
    def __init__(self, setup: RunSetup, folder: Path, say: Callable[[str], None]) -> None:
        """Continues the pool of an earlier start of the run, if the folder has one; `say` shows the user a sentence.

        Members of steps after the checkpoint from which the run resumes are deleted.
        """
        self._folder, self._say = folder, say
        self._every = SelfPlaySettings.of(setup.config).self_play_add_every_env_steps
        self._state = {"config": setup.config.model_dump(mode="json"), "spec": setup.spec.to_data()}
        self._model = make_acting_model(setup.spec, setup.config)
        self._flat = FlatParameters(self._model, with_grad=False)
        self._block = torch.empty(block_size(self._model))
        self._policy = WeightsChannel(setup.arena)
        self._opponents = [
            WeightsChannel(setup.for_opponent(number).arena) for number in range(setup.plan.num_opponents)
        ]
        self._scores: deque[float] = deque(maxlen=WINDOW)
        self.elo, ratings = self._read_ratings()
        if checkpoint.delete_after(folder, setup.first_env_steps):  # the saved rating is that of a later policy, too
            earlier = [steps for steps in ratings if steps <= setup.first_env_steps]
            self.elo = ratings[max(earlier)].elo if earlier else INITIAL_ELO
        self.members: dict[int, Member] = {}
        for path in checkpoint.newest_first(folder)[: len(self._opponents)]:
            try:
                env_steps = checkpoint.saved_env_steps(path)
                self._model.load_state_dict(dict(checkpoint.load(path).model))
            except (CheckpointError, RuntimeError) as error:
                say(f"warning: The pool of self-play continues without {path.name}: {error}")
                continue
            write_block(self._model, self._flat, self._block)
            self._enter(ratings.get(env_steps, Member(env_steps, self.elo)))
        self._added_at = max((member.env_steps for member in self.members.values()), default=0)

    def add_if_due(self, env_steps: int) -> None:
        """Adds the newest published policy to the pool if enough environment steps have passed since the last one.

        Args:
            env_steps: those that the learner has reported, and not those of the newest weights: a serial run looks for
                members at moments that depend on the clock, while reports come after each dataset, so it repeats.
        """
        if env_steps - self._added_at < self._every:
            return
        published = self._policy.read(self._block.numpy(), 0)
        if published is None:
            return
        self._added_at = published.env_steps
        read_block(self._model, self._flat, self._block)
        content = Checkpoint(self._model.state_dict(), {}, self._state)
        try:
            checkpoint.save(self._folder, content, published.env_steps, keep=len(self._opponents))
        except CheckpointError as error:
            self._say(f"The policy does not enter the pool of self-play, training continues: {error}")
            return
        self._enter(Member(published.env_steps, self.elo))

    def rate(self, matches: Iterable[MatchRecord]) -> None:
        """Counts finished games; those against members that have left the pool meanwhile are left out."""
        members = {member.env_steps: member for member in self.members.values()}
        for match in matches:
            member = members.get(match.member)
            if member is None:
                continue
            change = elo_change(self.elo, member.elo, match.score)
            self.elo += change
            member.elo -= change
            member.won += match.score == 1.0
            member.drawn += match.score == 0.5
            member.lost += match.score == 0.0
            self._scores.append(match.score)

    def record(self) -> dict[str, float]:
        """Saves the ratings; returns the metrics of a record by their published names."""
        members = sorted(self.members.values(), key=lambda member: member.env_steps)
        ratings = {"elo": self.elo, "members": [dataclasses.asdict(member) for member in members]}
        try:
            self._folder.mkdir(exist_ok=True)
            write_text_atomically(self._folder / RATINGS, json.dumps(ratings, indent=1) + "\n")
        except OSError as failure:
            self._say(f"Could not write {self._folder / RATINGS}: {failure.strerror}.")
        metrics = {"self_play/elo": self.elo, "self_play/pool_size": float(len(members))}
        if members:
            elos = [member.elo for member in members]
            pool_elos = {"mean": sum(elos) / len(elos), "min": min(elos), "max": max(elos)}
            metrics |= {f"self_play/pool_elo_{name}": value for name, value in pool_elos.items()}
        if self._scores:
            metrics["self_play/win_rate"] = sum(score == 1.0 for score in self._scores) / len(self._scores)
        return metrics

    def _enter(self, member: Member) -> None:
        """Publishes the weights in `_block` as those of a free opponent, or in place of the oldest member."""
        free = [number for number in range(len(self._opponents)) if number not in self.members]
        oldest = min(self.members, key=lambda number: self.members[number].env_steps, default=0)
        number = free[0] if free else oldest
        self._opponents[number].publish(self._block.numpy(), 0, member.env_steps)
        self.members[number] = member

    def _read_ratings(self) -> tuple[float, dict[int, Member]]:
        """The saved ratings of the policy and of its members; a missing or damaged file gives initial ones."""
        try:
            saved: dict[str, Any] = json.loads((self._folder / RATINGS).read_text(encoding="utf-8"))
            members = [Member(**each) for each in saved["members"]]
            return float(saved["elo"]), {member.env_steps: member for member in members}
        except (OSError, ValueError, TypeError, KeyError):
            return INITIAL_ELO, {}

"""Population-based training (Jaderberg et al. 2017, arXiv:1711.09846): gives each policy its turns.

    records --steps, objectives--> PopulationTraining --members--> PopulationRules
                                     |        |      <---Turn-----
                               pbt.jsonl      +--PolicyChange--> learner of the policy

A member of the population is a policy of this run, or, with `pbt_shared_dir`, a run (`SharedFolder`). Each has its turn
after `pbt_period_env_steps` steps of its own. What a turn draws at random follows from the run's seed, the member and
the number of the turn; so the lines of `pbt.jsonl` are all that a resumed run has to know. A policy's checkpoint holds
the number of the last turn that its learner has carried out; later lines are dropped, and these turns are taken again.
"""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from asyncrl.analysis.records import read_json_lines
from asyncrl.buffers.control import FROM_FILE, LAST_TURN, TAKEOVER_FILE, PolicyChange
from asyncrl.config.hyperparameters import Hyperparameters
from asyncrl.config.schema import TrainConfig
from asyncrl.contrib.population.history import HISTORY
from asyncrl.contrib.population.settings import PopulationSettings
from asyncrl.contrib.population.shared_folder import SharedFolder
from asyncrl.contrib.population.turns import SHAPING, Member, PopulationRules, Turn
from asyncrl.observers.observer import Observer, Run
from asyncrl.observers.status import Record
from asyncrl.processes.seeding import Stream, derive_seed
from asyncrl.storage.checkpoint import load_state
from asyncrl.storage.run_folder import replacing, write_text_atomically

_RETURN = "rollout/ep_rew_mean"
_DEFAULT_OBJECTIVE = PopulationSettings.model_fields["pbt_target_objective"].default


def population_observer(config: TrainConfig) -> PopulationTraining | None:
    """The observer of a run with population-based training; None of other runs."""
    return PopulationTraining(config) if PopulationSettings.of(config).with_pbt else None


class PopulationTraining(Observer):
    """Gives each policy its turns, and writes each turn to `pbt.jsonl`.

    A line has `env_steps` of the run, `policy` (its number), `policy_env_steps`, `turn` (0 at the start), `action` and
    `source` of the `Turn`, `objectives` of all members, and the hyperparameters `before` and `after`. It is written
    before the learner is asked.
    """

    def __init__(self, config: TrainConfig) -> None:
        """Takes the run's settings, without changes of hyperparameters.

        Raises:
            UsageError: the shared folder cannot be used.
        """
        self._config, self._settings = config, PopulationSettings.of(config)
        self._folder: SharedFolder | None = None
        if self._settings.pbt_shared_dir is not None:
            self._folder = SharedFolder(Path(self._settings.pbt_shared_dir).expanduser(), config)

    def on_start(self, run: Run) -> None:
        """Reads the turns that were carried out before the checkpoint; policies without any get their first values."""
        self._path = run.folder / HISTORY
        self._rules = PopulationRules(self._config, run.spec.reward_shaping)
        run.withdraw_turns()
        num_policies = run.plan.num_policies
        self._prefixes = [f"policy_{idx}/" for idx in range(num_policies)] if num_policies > 1 else [""]
        self._names = [prefix.rstrip("/") for prefix in self._prefixes] if self._folder is None else [self._folder.name]
        checkpoints: Sequence[Path | None] = run.start.checkpoints or [run.start.checkpoint] * num_policies
        last_turns = [-1 if path is None else load_state(path).get(LAST_TURN, -1) for path in checkpoints]
        # A broken last line, as a killed run leaves it, was not carried out.
        lines = [line for line in read_json_lines(self._path) if line["turn"] <= last_turns[line["policy"]]]
        write_text_atomically(self._path, "".join(map(_as_text, lines)))
        self._last_lines = {line["policy"]: line for line in lines}
        self._published_at = 0  # environment steps, of the shared folder
        self._said: set[str] = set()
        self._is_off = False
        for idx in range(num_policies):
            if idx in self._last_lines:
                _give_reward_shaping(run, idx, self._last_lines[idx]["after"])
            else:
                values = self._values_of(run, idx)
                if idx > 0:  # the first begins with the run's settings
                    given = run.config.policies.get(idx, {})
                    values = self._rules.mutate(values, self._random(idx, 0), fixed=given)
                self._carry_out(run, idx, Turn("started", None, values), {}, 0)

    def on_record(self, run: Run, record: Record) -> None:
        """Gives each policy its turn if it is due."""
        settings, scalars = self._settings, record.scalars
        names = [f"{prefix}time/total_env_steps" for prefix in self._prefixes]
        if self._is_off or not run.weights or any(name not in scalars for name in names):
            return
        objectives = [self._objective(run, scalars, prefix) for prefix in self._prefixes]
        for idx, name in enumerate(names):
            env_steps = int(scalars[name])
            is_due = env_steps - self._last_lines[idx]["policy_env_steps"] >= settings.pbt_period_env_steps
            is_due = is_due and env_steps >= settings.pbt_start_mutation
            is_published_late = env_steps - self._published_at >= settings.pbt_period_env_steps
            if not is_due and (self._folder is None or not is_published_late):
                continue
            known = [each for each in objectives if each is not None]
            if len(known) < len(objectives):
                return
            own = {
                self._names[each]: Member(objective, self._values_of(run, each)) for each, objective in enumerate(known)
            }
            members: Mapping[str, Member] | None = own
            if self._folder is not None:
                members = self._exchange(run, self._folder, own[self._folder.name], env_steps)
            if is_due and members is not None:
                draw = self._random(idx, self._last_lines[idx]["turn"] + 1)
                is_reference = idx == 0 and self._folder is None
                turn = self._rules.decide_turn(self._names[idx], members, draw, is_reference=is_reference)
                self._carry_out(run, idx, turn, members, env_steps, record.env_steps)

    def _objective(self, run: Run, scalars: Mapping[str, float], prefix: str) -> float | None:
        name = self._settings.pbt_target_objective
        found = scalars.get(f"{prefix}episode_extra_stats/{name}")
        if found is None and prefix + _RETURN in scalars:
            if name == _DEFAULT_OBJECTIVE:
                found = scalars[prefix + _RETURN]
                if run.spec.reward_shaping:
                    text = 'the objective is a return that the reward shaping changes; no episode has "true_objective"'
                    self._say_once(run, f'{text} in info["episode_extra_stats"]')
            else:
                self._say_once(run, f'no episode has {name!r} in info["episode_extra_stats"] (--pbt_target_objective)')
        return found if found is not None and math.isfinite(found) else None

    def _random(self, policy_idx: int, turn: int) -> random.Random:
        """The random numbers of one turn of one member."""
        member = policy_idx if self._folder is None else zlib.crc32(self._folder.name.encode())
        member_seed = derive_seed(self._config.seed, Stream.OBSERVER, member)
        return random.Random(derive_seed(member_seed, Stream.OBSERVER, turn))

    def _exchange(self, run: Run, folder: SharedFolder, own: Member, env_steps: int) -> dict[str, Member] | None:
        """Publishes this run in the shared folder and returns all members; None if the folder cannot be used now."""
        block = np.empty(run.weights[0].num_values, np.float32)
        run.weights[0].read(block, seen=0)
        try:
            folder.publish(own, block)
            members, other_networks = folder.members(len(block))
        except OSError as error:
            self._say_once(run, f"the shared folder cannot be used: {error.strerror or error}")
            return None
        self._published_at = env_steps
        for name in other_networks:
            reason = "it has another network, normalization, algorithm or environment"
            self._say_once(run, f"the run {name} does not count, because {reason}")
        return members

    def _carry_out(
        self, run: Run, policy_idx: int, turn: Turn, members: Mapping[str, Member], own_steps: int, env_steps: int = 0
    ) -> None:
        """Writes a line, and asks the learner."""
        last = self._last_lines.get(policy_idx)
        line: dict[str, Any] = {
            "env_steps": env_steps,
            "policy": policy_idx,
            "policy_env_steps": own_steps,
            "turn": 0 if last is None else last["turn"] + 1,
            "action": turn.action,
            "source": turn.source,
            "objectives": {name: member.objective for name, member in members.items()},
            "before": self._values_of(run, policy_idx),
            "after": turn.values,
        }
        source: int | None = None
        try:
            if turn.source is not None and self._folder is None:
                source = self._names.index(turn.source)
            elif turn.source is not None and self._folder is not None:
                with replacing(run.folder / "checkpoints" / TAKEOVER_FILE) as weights:
                    np.save(weights, self._folder.weights_of(turn.source))
                source = FROM_FILE
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(_as_text(line))
        except (OSError, ValueError) as error:
            self._is_off = True
            self._say_once(run, f"it has ended, training continues: {error}")
            return
        self._last_lines[policy_idx] = line
        learner_values = {name: value for name, value in turn.values.items() if not name.startswith(SHAPING)}
        run.change_policy(policy_idx, PolicyChange(Hyperparameters(**learner_values), source, line["turn"]))
        _give_reward_shaping(run, policy_idx, turn.values)

    def _values_of(self, run: Run, policy_idx: int) -> dict[str, float]:
        last = self._last_lines.get(policy_idx, {"after": {}})
        return self._rules.values_of(run.config_of(policy_idx), last["after"])

    def _say_once(self, run: Run, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            run.say(f"Population-based training: {text}.")


def _give_reward_shaping(run: Run, policy_idx: int, values: Mapping[str, float]) -> None:
    shaping = {name.removeprefix(SHAPING): value for name, value in values.items() if name.startswith(SHAPING)}
    if shaping:
        run.set_reward_shaping(policy_idx, shaping)


def _as_text(line: Mapping[str, Any]) -> str:
    return json.dumps(line) + "\n"

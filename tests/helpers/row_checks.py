"""Compares what a recorded run trained on with the ledgers of its environments (`ledger_envs`), row by row.

Every check fails with an AssertionError that names the rule.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from ledger_envs import Life, read_ledgers
from run_helper import FinishedRun

from asyncrl.models.actor_critic import ActorCritic
from asyncrl.models.flat import FlatParameters, read_block
from asyncrl.storage import checkpoint

SAME_POLICY = 1e-5
"""By how much rounding in another order of summation may move a probability ratio from 1."""

Fields = Mapping[str, np.ndarray]


class Row(NamedTuple):
    """Which observation a row holds, and whether a step was trained from it."""

    episode: int
    step: int
    valid: bool


class ExpectedRows:
    """What must be stored of one life, row by row: the rules of `docs/architecture.md`."""

    def __init__(self, life: Life, mode: AutoresetMode | None) -> None:
        """Takes the autoreset mode of a vectorized environment, None for environments that are stepped one by one."""
        self._life = life
        self._mode = mode
        self._next = Row(0, 0, True)

    def follow(self, row: Row) -> Row:
        """The row after `row`."""
        episode, step, valid = row
        if valid:
            made = self._life.step(episode, step)
            if made.truncated or (made.terminated and self._mode == AutoresetMode.NEXT_STEP):
                return Row(episode, step + 1, False)
            return Row(episode + 1, 0, True) if made.terminated else Row(episode, step + 1, True)
        if self._mode in (None, AutoresetMode.NEXT_STEP):
            return Row(episode + 1, 0, True)
        # The next episode had begun, and its first step was made while this row was stepped.
        lost = self._life.step(episode + 1, 0)
        return Row(episode + 2, 0, True) if lost.ended else Row(episode + 1, 1, True)

    def take(self, num_rows: int) -> list[Row]:
        """The rows of the next trajectory, and the one that its last observation shows."""
        rows = [self._next]
        for _ in range(num_rows):
            rows.append(self.follow(rows[-1]))
        self._next = self._begin_after(rows[-1])
        return rows

    def go_on_from(self, row: Row) -> None:
        """Expects `row` next."""
        self._next = row

    def count_rest(self, num_rows: int | None = None) -> int:
        """Samples that the environment made after those that were taken, in trajectories of `num_rows` rows."""
        row, at, count = self._next, 0, 0
        while not row.valid or self._life.made(row.episode, row.step):
            count += row.valid
            at += 1
            try:
                row = self.follow(row)
            except AssertionError:  # the environment has not made the step that follows a final observation
                break
            if num_rows is not None and at % num_rows == 0:
                row = self._begin_after(row)
        return count

    def _begin_after(self, shown: Row) -> Row:
        """The first row of the trajectory after the one whose last observation is `shown`."""
        # A final observation there has served, unless the environment is reset by the step that follows.
        has_served = not shown.valid and self._mode != AutoresetMode.NEXT_STEP
        return Row(shown.episode + 1, 0, True) if has_served else shown


@dataclasses.dataclass(frozen=True)
class Counts:
    """What became of the steps of a run.

    Attributes:
        lives: environments that made steps.
        trained: samples that were trained on.
        dropped: samples that were not, though later ones of their environment were.
        rest: samples that the environments had made after the last one that was trained on.
    """

    lives: int
    trained: int
    dropped: int
    rest: int


def check_on_policy(
    finished: FinishedRun, ledgers: Path, mode: AutoresetMode | None, deaths: int = 0, lost_with_machines: int = 0
) -> Counts:
    """Checks all that an on-policy run trained on.

    Args:
        finished: the run, recorded.
        ledgers: folder of the ledgers.
        mode: see `ExpectedRows`.
        deaths: rollout workers that were killed.
        lost_with_machines: samples that may have been lost with pools of workers, which nobody can count.
    """
    lives, plan = read_ledgers(ledgers), finished.plan
    expected = {number: ExpectedRows(life, mode) for number, life in lives.items()}
    states: dict[tuple[int, ...], np.ndarray] = {}
    trained = gaps = 0
    policies = Policies(finished)
    for data in finished.datasets:
        for column in range(data["reward"].shape[1]):
            number = int(data["obs"][0, column, 0])
            gaps += _check_column(data, column, lives[number], expected[number], plan.rollout)
        policies.check(data, states)
        check_estimates(data, lives, finished.config.gamma, finished.config.gae_lambda)
        check_minibatches(
            data, policies, finished.config.num_epochs if plan.hogwild is None else plan.hogwild.num_epochs
        )
        trained += int(data["valid"].sum())
    rest = sum(rows.count_rest(plan.rollout) for rows in expected.values())
    num_dead = deaths * plan.num_envs_per_worker
    num_lives = _count_lives(lives, finished, num_dead)
    if plan.hogwild is None:
        assert finished.outcome.env_steps == trained, "the run counts the steps that it trained on"
    else:
        interrupted = trained + gaps + rest - finished.outcome.env_steps
        assert 0 <= interrupted <= num_dead, "the run counts the steps that were made"
    reported = finished.learner_reports[-1].dropped_samples + finished.dropped_by_workers
    assert gaps <= reported, f"{gaps} samples were lost, {reported} were reported as dropped"
    assert reported <= gaps + rest, "what was reported as dropped was not trained on"
    if plan.hogwild is None:
        in_hand = plan.num_slots * plan.rollout * plan.envs_per_split
    else:  # a Hogwild worker's rollout goes with it
        in_hand = (plan.num_envs + num_dead) * plan.rollout
    unreported = gaps + rest - reported
    assert unreported <= in_hand + num_dead + lost_with_machines, f"{unreported} samples were lost without a report"
    return Counts(num_lives, trained, gaps, rest)


def _count_lives(lives: Mapping[int, Life], finished: FinishedRun, num_dead: int) -> int:
    num_lives = sum(len(life) > 0 for life in lives.values())
    num_envs = finished.plan.num_envs
    assert num_envs <= num_lives <= num_envs + num_dead, "an environment has one life, and another after each death"
    return num_lives


def _check_column(data: Fields, column: int, life: Life, expected: ExpectedRows, rollout: int) -> int:
    """Checks one environment's part of one trajectory; returns the samples that were dropped before it."""
    obs = data["obs"][:, column]
    rows, num_dropped = expected.take(rollout), 0
    while rows[0][:2] < tuple(obs[0, 1:3].astype(int)):
        num_dropped += sum(row.valid for row in rows[:-1])
        rows = expected.take(rollout)
    observations = np.array([life.observation(row.episode, row.step) for row in rows])
    np.testing.assert_array_equal(obs, observations, "rows of one environment follow one another")
    np.testing.assert_array_equal(data["valid"][:, column], [row.valid for row in rows[:-1]], "valid rows are steps")
    for at, row in enumerate(rows[:-1]):
        flags = data["terminated"][at, column], data["truncated"][at, column]
        if row.valid:
            step = life.step(row.episode, row.step)
            taken = np.clip(data["action"][at, column], -1.0, 1.0)
            np.testing.assert_array_equal(taken, step.received, "the action is the one that was received")
            assert data["reward"][at, column] == step.reward, "the reward is that of the step"
            assert flags == (step.terminated, step.truncated), "the end of an episode is of the kind that it was"
        else:
            assert flags == (False, False), "a final observation ends nothing"
    return num_dropped


class Policies:
    """The policies that acted in a run, and what they say of the rows that name them."""

    def __init__(self, finished: FinishedRun) -> None:
        """Reads what was published."""
        self._finished = finished
        self._model = ActorCritic(finished.spec, finished.config)
        self._is_hogwild = finished.plan.hogwild is not None
        published = {} if self._is_hogwild else finished.publications
        self.of_versions = {version: self._policy_of(block) for version, block in published.items()}
        # Others change the weights between acting and training in this mode, unless all take turns in one process.
        self._are_known = not (
            self._is_hogwild and finished.config.hogwild_mode == "shared" and not finished.plan.serial_mode
        )

    def _policy_of(self, block: np.ndarray) -> ActorCritic:
        model = ActorCritic(self._finished.spec, self._finished.config)
        read_block(model, FlatParameters(model, with_grad=False), torch.from_numpy(block))
        return model

    def of(self, data: Fields) -> dict[int, ActorCritic]:
        """The policies that acted on a dataset, by version."""
        if not self._is_hogwild:
            return self.of_versions
        policy = self._policy_of(data["block"])
        return dict.fromkeys(np.unique(data["policy_version"]).tolist(), policy)

    @torch.inference_mode()
    def check(self, data: Fields, states: dict[tuple[int, ...], np.ndarray]) -> None:
        """Fails unless parameters, log-probs and values are those of the version that a row names.

        Args:
            data: one dataset.
            states: see `_check_first_states`.
        """
        valid = data["valid"]
        parameters, action = (torch.from_numpy(data[name][valid]) for name in ("action_parameters", "action"))
        log_prob = self._model.distribution.log_prob(parameters, action)
        _assert_close(log_prob, data["log_prob"][valid], "log-probs are those of the stored actions")
        if not self._are_known:
            return
        policies = self.of(data)
        num_rows, versions = len(valid), data["policy_version"]
        length = num_rows // len(data["rnn_state"])
        begins = _begins(data)
        state = np.zeros_like(data["rnn_state"][0])
        for row in range(num_rows):
            if row % length == 0:
                stored = data["rnn_state"][row // length]
                if row > 0:
                    _assert_close(state, stored, "the recurrent state of a sequence is that of the row before")
                state = stored.copy()
            after, value, parameters = self._step(policies, versions[row], data["obs"][row], state)
            is_step = valid[row]
            _assert_close(value, data["value"][row], "values are those of the version that the row names")
            _assert_close(parameters[is_step], data["action_parameters"][row][is_step], "so are the distributions")
            state = after
            state[begins[row + 1]] = 0.0
        _check_first_states(data, state, states)
        self._check_last_values(policies, data, state)
        self._check_estimated_values(data)

    def _step(
        self, policies: Mapping[int, ActorCritic], versions: np.ndarray, obs: np.ndarray, state: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """States after a row, values, and parameters of the policies with these versions, one for each column."""
        after, value = np.zeros_like(state), np.zeros(len(obs), np.float32)
        parameters = np.zeros((len(obs), self._model.distribution.num_parameters), np.float32)
        for version in np.unique(versions).tolist():
            columns = versions == version
            result = policies[version].act(torch.from_numpy(obs[columns]), rnn_state=torch.from_numpy(state[columns]))
            after[columns], value[columns] = result.rnn_state.numpy(), result.value.numpy()
            parameters[columns] = result.action_parameters.numpy()
        return after, value, parameters

    def _check_last_values(self, policies: Mapping[int, ActorCritic], data: Fields, state: np.ndarray) -> None:
        """The version that valued the row after the last step is not stored, but is none before that of the step."""
        values, known = data["value"][-1], data["policy_version"][-1]
        is_explained = np.zeros(values.shape, bool)
        for version in policies:
            is_possible = (known <= version) & (version <= data["learner_version"])
            if is_possible.any():
                _, value, _ = self._step(policies, np.full(len(values), version), data["obs"][-1], state)
                is_explained |= is_possible & np.isclose(value, values, rtol=1e-4, atol=1e-4)
        assert is_explained.all(), "the last observation was valued by a policy of its time"

    def _check_estimated_values(self, data: Fields) -> None:
        """Estimates start from the stored values, or from those of the critic that is trained if samples are old."""
        used = data["estimated_value"]
        if not (self._finished.config.recompute_values and (data["policy_version"] < data["learner_version"]).any()):
            np.testing.assert_array_equal(used, data["value"], "estimates start from the stored values")
            return
        policies, versions = {0: self._policy_of(data["block"])}, np.zeros(used.shape[1])
        state, begins = data["rnn_state"][0].copy(), _begins(data)
        for row, obs in enumerate(data["obs"]):
            state[begins[row]] = 0.0
            state, value, _ = self._step(policies, versions, obs, state)
            _assert_close(value, used[row], "estimates start from what the present critic says")


def _begins(data: Fields) -> np.ndarray:
    """Rows whose recurrent state does not follow from the row before, as far as a dataset shows it."""
    return np.concatenate((np.zeros_like(data["valid"][:1]), data["terminated"] | ~data["valid"]))


def _check_first_states(data: Fields, last: np.ndarray, states: dict[tuple[int, ...], np.ndarray]) -> None:
    """Compares the recurrent states with which columns begin with those of the columns before, and notes how these end.

    Args:
        data: one dataset, in which an environment may have several columns.
        last: recurrent state before the last observation of each column.
        states: recurrent states before the last observations of earlier columns, by life, episode and step.
    """
    for column, stored in enumerate(data["rnn_state"][0]):
        first, shown = (tuple(data["obs"][row, column, :3].astype(int).tolist()) for row in (0, -1))
        if first[2] == 0:
            assert not stored.any(), "an episode begins with a recurrent state of zeros"
        elif first in states:
            _assert_close(states[first], stored, "the recurrent state continues from one trajectory to the next")
        states[shown] = last[column]


def check_estimates(data: Fields, lives: Mapping[int, Life], gamma: float, gae_lambda: float) -> None:
    """Fails unless advantages are sums over the rest of each episode, of which only a termination makes a value 0."""
    value, valid, reward = data["estimated_value"].astype(float), data["valid"], data["reward"].astype(float)
    advantage = np.zeros(reward.shape)
    for row, column in np.argwhere(valid).tolist():
        weight = 1.0
        for at in range(row, len(reward)):
            number, episode, step = data["obs"][at, column, :3].astype(int).tolist()
            made = lives[number].step(episode, step)
            bootstrap = 0.0 if made.terminated else value[at + 1, column]
            advantage[row, column] += weight * (reward[at, column] + gamma * bootstrap - value[at, column])
            weight *= gamma * gae_lambda
            if made.ended:
                break
    _assert_close(data["advantage"][valid], advantage[valid], "advantages end with their episode")
    _assert_close(data["return"][valid], (advantage + value[:-1])[valid], "returns are advantages and values")


def check_minibatches(data: Fields, policies: Policies, num_epochs: int) -> None:
    """Fails unless each epoch trains on each sample once, with its own observation, log-prob, advantage and return."""
    valid = data["valid"]
    num_samples = int(valid.sum())
    assert len(data["batch_action"]) == num_epochs * num_samples, "each epoch trains on each sample once"
    if num_samples == 0:
        return
    order = np.lexsort(data["action"][valid].T)
    normalized = _normalized_obs(data, policies)
    for epoch in range(num_epochs):
        part = slice(epoch * num_samples, (epoch + 1) * num_samples)
        found = np.lexsort(data["batch_action"][part].T)

        def same(name: str, stored: np.ndarray, part: slice = part, found: np.ndarray = found) -> None:
            _assert_close(data[f"batch_{name}"][part][found], stored[order], f"a sample has its own {name}")

        same("action", data["action"][valid])
        same("log_prob", data["log_prob"][valid])
        same("return", data["return"][valid])
        same("floats", normalized)
    _check_normalized_advantages(data)


def _normalized_obs(data: Fields, policies: Policies) -> np.ndarray:
    """Observations of samples as their own behaviour saw them."""
    obs, versions = torch.from_numpy(data["obs"][:-1][data["valid"]]), data["policy_version"][data["valid"]]
    normalized = torch.zeros_like(obs)
    for version, policy in policies.of(data).items():
        rows = torch.from_numpy(versions == version)
        normalized[rows] = policy.normalize_obs(obs[rows])
    return normalized.numpy()


def _check_normalized_advantages(data: Fields) -> None:
    own = {action.tobytes(): number for number, action in enumerate(data["action"][data["valid"]])}
    advantages = data["advantage"][data["valid"]]
    start = 0
    for size in data["batch_size"].tolist():
        part, start = slice(start, start + size), start + size
        numbers = [own[action.tobytes()] for action in data["batch_action"][part]]
        raw, used = advantages[numbers].astype(float), data["batch_advantage"][part].astype(float)
        if size > 2:
            np.testing.assert_allclose(
                (used - used.mean()) / used.std(), (raw - raw.mean()) / raw.std(), atol=1e-2,
                err_msg="a sample has its own advantage",
            )  # fmt: skip


def check_lag(finished: FinishedRun) -> None:
    """Fails unless sync and serial runs train on the newest policy alone, and async ones within their bound."""
    if finished.plan.async_rl:
        assert finished.largest_lag <= finished.plan.lag_bound
        return
    assert finished.largest_lag == 0
    deviations = [report.train.max_ratio_deviation_first_batch for report in finished.learner_reports if report.train]
    assert max(deviations) < SAME_POLICY


def check_replay(
    finished: FinishedRun, ledgers: Path, mode: AutoresetMode | None, deaths: int = 0, lost_with_machines: int = 0
) -> Counts:
    """Checks what a run of SAC has in its replay at the end, and all transitions that it drew from it.

    The replay has to be saved and large enough for all rows of the run. Arguments are as for `check_on_policy`.
    """
    lives, plan = read_ledgers(ledgers), finished.plan
    num_dead = deaths * plan.num_envs_per_worker
    num_lives = _count_lives(lives, finished, num_dead)
    expected = {number: ExpectedRows(life, mode) for number, life in lives.items()}
    cuts: dict[int, Row] = {}
    stripes = list(_stripes(finished))
    for columns in stripes:
        for env in range(columns["valid"].shape[1]):
            _check_stripe(columns, env, lives, expected, cuts)
    held = sum(int(columns["valid"].sum()) for columns in stripes)
    rest = sum(rows.count_rest() for rows in expected.values())
    if plan.hogwild is None:
        # A row of another machine may arrive after the last report, before the replay is saved.
        late = plan.num_envs if plan.remote.num_pools > 0 else 0
        assert 0 <= held - finished.outcome.env_steps <= late, "the replay holds every step of the run"
        # A row is whole after the step that follows it. The run ends when it has counted enough steps: in async at any
        # moment, in sync perhaps while the last step of another split is made.
        in_hand = plan.num_envs if plan.async_rl else plan.num_envs - plan.num_workers * plan.envs_per_split
        assert rest <= num_dead + in_hand + lost_with_machines, (
            "nothing is lost but steps that a death or the run's end interrupted"
        )
    else:  # the replay of a Hogwild worker goes with it
        assert 0 <= held + rest - finished.outcome.env_steps <= num_dead, "the run counts the steps that were made"
        assert deaths or rest == 0, "the replay holds every step of the run"
    drawn = {number for path in _drawn(finished) for number in _check_drawn(path, finished, lives, cuts)}
    # A Hogwild worker that replaces another has a replay and a warm-up of its own, and may make its first steps last.
    num_sure = plan.num_envs_per_worker if plan.hogwild is not None and deaths else plan.num_envs
    assert len(drawn) >= num_sure, "all environments are drawn from"
    return Counts(num_lives, held, 0, rest)


def _stripes(finished: FinishedRun) -> Iterator[Fields]:
    """Each stripe of the replays at the end of the run, oldest rows first."""
    if finished.plan.hogwild is not None:
        for path in sorted((finished.folder / "batches").glob("replay-*.npz")):
            yield {name.partition(".")[0]: column for name, column in np.load(path).items()}
        return
    assert finished.outcome.checkpoint is not None
    replay = checkpoint.load(Path(finished.outcome.checkpoint), with_replay=True).replay
    assert replay is not None
    columns = {name: np.concatenate(parts) for name, parts in replay.columns.items()}
    for split in range(finished.plan.num_splits):
        yield {name.partition(".")[0]: columns[name] for name in columns if name.endswith(f".{split}")}


def _check_stripe(
    columns: Fields, env: int, lives: Mapping[int, Life], expected: Mapping[int, ExpectedRows], cuts: dict[int, Row]
) -> None:
    """Checks all rows of one environment's place in a stripe, and writes where deaths have cut its lives.

    After a death the row behind the last one holds the final observation of an episode that counts as truncated.
    """
    own = {name: field[:, env] for name, field in columns.items() if name != "env_steps"}
    numbers = own["obs"][:, 0].astype(int)
    starts = [0, *(np.flatnonzero(np.diff(numbers[:-1])) + 1).tolist(), len(own["valid"])]
    for start, stop in zip(starts, starts[1:], strict=False):
        number = int(numbers[start])
        is_dead = stop < len(own["valid"])
        num_rows = stop - start - is_dead
        rows = expected[number].take(num_rows)
        expected[number].go_on_from(rows[-1])
        observations = np.array([lives[number].observation(row.episode, row.step) for row in rows])
        np.testing.assert_array_equal(own["obs"][start : start + num_rows + 1], observations, "rows follow one another")
        for at, row in enumerate(rows[:-1], start):
            is_cut = is_dead and at == start + num_rows - 1
            flags = tuple(bool(own[name][at]) for name in ("valid", "terminated", "truncated"))
            if not row.valid:
                assert flags == (False, False, False), "a final observation is not a start and ends nothing"
                continue
            step = lives[number].step(row.episode, row.step)
            truncated = step.truncated or (is_cut and not step.terminated)
            assert flags == (True, step.terminated, truncated), "the end of an episode is of the kind that it was"
            _check_action(own["action"][at], step.received)
            assert own["reward"][at] == step.reward, "the reward is that of the step"
        if is_dead:
            assert not own["valid"][stop - 1], "no transition begins behind the last row before a death"
            cuts[number] = rows[-1]


def _check_action(stored: np.ndarray, received: np.ndarray) -> None:
    np.testing.assert_allclose(np.tanh(stored), received, atol=1e-6, err_msg="the action is the one that was received")


def _drawn(finished: FinishedRun) -> list[Path]:
    return sorted((finished.folder / "batches").glob("*.drawn"))


def _check_drawn(path: Path, finished: FinishedRun, lives: Mapping[int, Life], cuts: Mapping[int, Row]) -> set[int]:
    """Checks the transitions that a process has drawn; returns the lives that they are of."""
    num_between = finished.config.n_step - 1
    sizes = (5, 2, 1, 5, 1, 5 * num_between, num_between, 1)
    content = np.fromfile(path, np.float32)
    numbers = set()
    for record in content[: len(content) // sum(sizes) * sum(sizes)].reshape(-1, sum(sizes)):
        *fields, (own_weight,) = np.split(record, np.cumsum(sizes)[:-1])
        obs, action, (reward,), next_obs, (discount,), between, weights = fields
        assert own_weight == 1.0, "all are drawn equally often"
        number, episode, first = obs[:3].astype(int).tolist()
        life, total, weight, step = lives[number], 0.0, 1.0, first
        np.testing.assert_array_equal(obs, life.observation(episode, first), "a transition begins with its observation")
        _check_action(action, life.step(episode, first).received)
        for step in range(first, first + finished.config.n_step):
            made = life.step(episode, step)
            total += weight * float(made.reward)
            weight *= 0.0 if made.terminated else finished.config.gamma
            if made.ended or cuts.get(number) == (episode, step + 1, True):
                break
        for idx, observed in enumerate(between.reshape(num_between, 5)):
            is_there = first + 1 + idx <= step
            assert abs(weights[idx] - is_there * finished.config.gamma ** (idx + 1)) < 1e-6, "no step between is there"
            if is_there:
                expected = life.observation(episode, first + 1 + idx)
                np.testing.assert_array_equal(observed, expected, "an observation between is that of its step")
        assert abs(reward - total) < 1e-4, "the reward is the sum over the steps of the transition"
        assert abs(discount - weight) < 1e-6, "only a termination makes the next value 0"
        if weight > 0.0:
            np.testing.assert_array_equal(next_obs, life.observation(episode, step + 1), "and ends with what follows")
        numbers.add(number)
    return numbers


def _assert_close(found: torch.Tensor | np.ndarray, stored: np.ndarray, rule: str) -> None:
    np.testing.assert_allclose(found, stored, rtol=1e-4, atol=1e-4, err_msg=rule)

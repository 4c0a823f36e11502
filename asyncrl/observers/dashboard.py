"""The dashboard of a run: its metrics as a table for a terminal, drawn with Rich."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import psutil
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncrl.config.hooks import hooks
from asyncrl.observers.interval import largest_phases
from asyncrl.observers.observer import Run
from asyncrl.observers.status import Record, Status
from asyncrl.observers.summary import UNKNOWN, duration

LEAST_WIDTH, LEAST_HEIGHT = 80, 20
"""Columns and rows of the smallest terminal that it fits."""

_HISTORY = 240
_BARS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
_ASCII_BARS = ".:-=+*#@"
_TREND_S = 60.0
_END_OF_QUERY_S = 1.0
_LEARNING = {
    "train/policy_gradient_loss": "policy loss",
    "train/actor_loss": "actor loss",
    "train/value_loss": "value loss",
    "train/critic_loss": "critic loss",
    "train/approx_kl": "KL divergence",
    "lag/mean": "lag, versions",
    "replay/updates_per_env_step": "updates per step",
    "train/clip_fraction": "clip fraction",
    "train/explained_variance": "explained variance",
    "train/entropy": "entropy",
    "train/std": "standard deviation",
    "train/ent_coef": "entropy coefficient",
    "train/grad_norm": "gradient norm",
    "train/learning_rate": "learning rate",
    "train/n_updates": "updates",
    "replay/size": "replay, steps",
    **{name: title for name, (_, title) in hooks("METRICS").items() if title is not None},
}
_FAULTS = {
    "perf/restarts": "restarts",
    "perf/env_failures": "environment failures",
    "perf/failed_saves": "failed saves",
    "perf/not_finite_steps": "steps not finite",
    "perf/dropped_samples": "dropped samples",
    "train/skipped_steps": "skipped updates",
}
_POLICY_COLUMNS = {
    "rollout/ep_rew_mean": "return",
    "rollout/ep_len_mean": "length",
    "time/total_env_steps": "steps",
    "train/policy_gradient_loss": "policy loss",
    "train/value_loss": "value loss",
    "train/approx_kl": "KL",
    "lag/mean": "lag",
    "train/entropy": "entropy",
}
_POLICY_WIDTH, _NUMBER_WIDTH = 6, 12
_EXTRA = "episode_extra_stats/"


class Board:
    """Collects the metrics of a run, and makes the table of them.

    Attributes:
        usage: processor and memory of the run's processes.
    """

    def __init__(self, run: Run, usage: Usage) -> None:
        self.usage = usage
        self._run = run
        self._status: Status | None = None
        self._scalars: dict[str, float] = {}
        self._speeds: deque[float] = deque(maxlen=_HISTORY)
        self._episode_curves = {
            name: deque[tuple[float, float]](maxlen=_HISTORY) for name in ("rollout/ep_rew_mean", "rollout/ep_len_mean")
        }

    def add_status(self, status: Status) -> None:
        self._status = status
        if status.fps is not None and status.is_line:
            self._speeds.append(status.fps)

    def add_record(self, record: Record) -> None:
        self._scalars.update(record.scalars)
        now = record.scalars.get("time/time_elapsed")
        for name, history in self._episode_curves.items():
            if now is not None and name in record.scalars:
                history.append((now, record.scalars[name]))

    def render(self, width: int, height: int, is_ascii: bool = False) -> RenderableType:
        """The table, at most `width` columns and `height` rows."""
        head = [self._title(width), self._progress(width, is_ascii), Text(""), *self._curves(width, is_ascii)]
        blocks = [
            ("where the time goes", self._times(2 if width < 120 else 3)),
            ("learning", self._learning()),
            ("environment's own numbers", self._extra_stats()),
            ("faults", self._faults()),
            ("machine", self.usage.rows()),
        ]
        policies = self._policies(width, height - len(head) - 9)
        body = _columns([block for block in blocks if block[1]], width, height - len(head) - len(policies) - 1)
        return Group(*head, *policies, body)

    def _title(self, width: int) -> Text:
        config = self._run.config
        ranks = f", {self._run.plan.num_ranks} ranks" if self._run.plan.num_ranks > 1 else ""
        text = f"{config.env_id}, {config.algorithm.name}{ranks}, {self._run.folder.name}"
        key = "d: one line"
        return Text.assemble((text[: width - len(key) - 1].ljust(width - len(key)), "bold"), (key, "dim"))

    def _progress(self, width: int, is_ascii: bool) -> Text:
        status = self._status
        if status is None:
            return Text("starting")
        steps = f" {status.env_steps:,} of {status.target_env_steps:,} steps ({100 * status.share:.1f} %)"
        times = f", {duration(status.elapsed_s)} elapsed, {duration(status.remaining_s)} left"
        text = f" {status.activity},{steps}" if status.activity is not None else steps
        text = (text + times)[:width]
        return with_bar(text, width - len(text), status.share, is_ascii)

    def _curves(self, width: int, is_ascii: bool) -> list[Text]:
        speed = None if self._status is None else self._status.fps
        rows = [("speed", number(speed), "steps/s", list(self._speeds), "")]
        for name, title in (("rollout/ep_rew_mean", "return"), ("rollout/ep_len_mean", "length")):
            history = self._episode_curves[name]
            latest = history[-1][1] if history else None
            rows.append((title, number(latest), "", [value for _, value in history], _trend(history)))
        texts = []
        for title, value, unit, values, trend in rows:
            front = f"{title:<7} {value:>9} {unit:<7} "
            room = width - len(front) - len(trend) - 1
            curve = (sparkline(values, room, is_ascii).ljust(room), "cyan")
            texts.append(Text.assemble((f"{title:<7} ", "dim"), f"{value:>9} {unit:<7} ", curve, f" {trend}"))
        return [*texts, Text("")]

    def _times(self, num_phases: int) -> list[tuple[str, str]]:
        return [
            (f"{role} {phase.replace('_', ' ')}", f"{share:.0%}")
            for role, phases in largest_phases(self._run.phase_shares).items()
            for share, phase in phases[:num_phases]
            if share >= 0.01
        ]

    def _learning(self) -> list[tuple[str, str]]:
        return [(title, number(self._scalars[name])) for name, title in _LEARNING.items() if name in self._scalars]

    def _extra_stats(self) -> list[tuple[str, str]]:
        return [
            (name.removeprefix(_EXTRA), number(value))
            for name, value in self._scalars.items()
            if name.startswith(_EXTRA)
        ]

    def _faults(self) -> list[tuple[str, str]]:
        found = [(title, f"{self._scalars[name]:,.0f}") for name, title in _FAULTS.items() if self._scalars.get(name)]
        return found or ([("none", "")] if self._scalars else [])

    def _policies(self, width: int, most_rows: int) -> list[Text]:
        """One row for each of several policies, and an empty one."""
        count = self._run.plan.num_policies
        if count == 1 or not self._scalars:
            return []
        names = [
            name for name in _POLICY_COLUMNS if any(f"policy_{idx}/{name}" in self._scalars for idx in range(count))
        ]
        names = names[: (width - _POLICY_WIDTH) // _NUMBER_WIDTH]
        titles = "".join(f"{_POLICY_COLUMNS[name]:>{_NUMBER_WIDTH}}" for name in names)
        rows = [Text(f"{'policy':<{_POLICY_WIDTH}}{titles}", "dim")]
        shown = count if count + 2 <= most_rows else max(1, most_rows - 3)
        for idx in range(shown):
            values = (number(self._scalars.get(f"policy_{idx}/{name}")) for name in names)
            rows.append(Text(f"{idx:<{_POLICY_WIDTH}}" + "".join(f"{value:>{_NUMBER_WIDTH}}" for value in values)))
        if shown < count:
            rows.append(Text(f"and {count - shown} more", "dim"))
        return [*rows, Text("")]


def with_bar(text: str, bar_width: int, share: float, is_ascii: bool) -> Text:
    """A text behind a bar that is filled in part."""
    filled = round(bar_width * share)
    done, rest = ("#", "-") if is_ascii else ("\u2501", "\u2500")
    bar = (done * filled, "green"), (rest * (bar_width - filled), "dim")
    return Text.assemble(*bar, text, no_wrap=True, overflow="crop")


def number(value: float | None) -> str:
    """A number with about four digits."""
    if value is None or value != value:
        return UNKNOWN
    if value == 0 or 0.001 <= abs(value) < 1:
        return f"{value:.3f}" if value else "0"
    if abs(value) < 0.001:
        return f"{value:.1e}"
    return f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"


def sparkline(values: Sequence[float], width: int, is_ascii: bool = False) -> str:
    """The newest values as bars, each at most once, the largest of them as the highest bar."""
    bars = _ASCII_BARS if is_ascii else _BARS
    shown = [value for value in values if value == value][-max(0, width) :] if width > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    return "".join(bars[round((value - low) / (high - low) * (len(bars) - 1)) if high > low else 0] for value in shown)


def _trend(history: Iterable[tuple[float, float]]) -> str:
    """How the last value differs from that of a minute before, or from the first one."""
    points = list(history)
    if len(points) < 2:
        return ""
    end_s, end = points[-1]
    start_s, start = next(point for point in points if point[0] >= end_s - _TREND_S)
    if start_s == end_s:
        start_s, start = points[-2]
    difference = end - start
    return f"{'+' if difference >= 0 else '-'}{number(abs(difference))} in {duration(end_s - start_s)}"


def _columns(blocks: Sequence[tuple[str, Sequence[tuple[str, str]]]], width: int, height: int) -> RenderableType:
    """Blocks of named numbers side by side. Where there is no room the longest of a column loses its last rows."""
    count = max(1, min(len(blocks), 2 if width < 120 else 3 if width < 180 else 5))
    own_width = (width - 3 * (count - 1)) // count
    stacks: list[list[list[Text]]] = [[] for _ in range(count)]
    for title, rows in blocks:
        lines = [Text(title[:own_width], "bold")]
        for name, value in rows:
            value = value[: own_width - 1]
            name_width = own_width - len(value) - 1
            lines.append(Text(f"{name[:name_width]:<{name_width}} {value}"))
        min(stacks, key=_num_rows).append(lines)
    for stack in stacks:
        while _num_rows(stack) > height:
            longest = max(stack, key=len)
            if len(longest) > 2:
                longest.pop()
            else:
                stack.pop()
    columns = [[line for block in stack for line in (Text(""), *block)][1:] for stack in stacks]
    table = Table.grid(padding=(0, 3, 0, 0))
    for row in range(max(map(len, columns), default=0)):
        table.add_row(*(column[row] if row < len(column) else Text(" " * own_width) for column in columns))
    return table


def _num_rows(stack: Sequence[Sequence[Text]]) -> int:
    """Rows of blocks with an empty row between two."""
    return sum(len(block) + 1 for block in stack) - 1 if stack else 0


class Usage:
    """Processor time and memory of this process and its children, and of NVIDIA GPUs, looked at every few seconds."""

    EVERY_S = 4.0

    def __init__(self, uses_gpu: bool) -> None:
        self._own = psutil.Process()
        self._uses_gpu = uses_gpu and shutil.which("nvidia-smi") is not None
        self._query: subprocess.Popen[str] | None = None
        self._looked_at = 0.0
        self._before: Mapping[int, float] = {}
        self._rows: list[tuple[str, str]] = []
        self._gpu_rows: list[tuple[str, str]] = []

    def rows(self) -> list[tuple[str, str]]:
        """Names and values."""
        now = time.monotonic()
        if now - self._looked_at >= self.EVERY_S:
            self._look(now)
        return [*self._rows[:2], *self._gpu_rows, *self._rows[2:]]

    def close(self) -> None:
        if self._query is not None:
            self._query.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hang, and holds the process then
                self._query.communicate(timeout=_END_OF_QUERY_S)
            self._query = None

    def _look(self, now: float) -> None:
        seconds: dict[int, float] = {}
        private, shared = 0, 0
        for process in (self._own, *self._own.children(recursive=True)):
            try:
                with process.oneshot():
                    times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:
                continue
            seconds[process.pid] = times.user + times.system
            shared_here = getattr(memory, "shared", 0)
            private += memory.rss - shared_here
            shared = max(shared, shared_here)
        used = sum(spent - self._before.get(pid, spent) for pid, spent in seconds.items())
        cores = used / (now - self._looked_at) if self._before else None
        self._before, self._looked_at = seconds, now
        machine = psutil.virtual_memory()
        self._rows = [
            ("cores in use", f"{UNKNOWN if cores is None else f'{cores:.1f}'} of {psutil.cpu_count()}"),
            ("memory", f"{(private + shared) / 2**30:.1f} GiB"),
            ("memory free", f"{machine.available / 2**30:.1f} of {machine.total / 2**30:.1f} GiB"),
            ("cores in use, all programs", f"{psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1):.1f}"),
            ("processes", f"{len(seconds)}"),
        ]
        if self._uses_gpu:
            self._look_at_gpus()

    def _look_at_gpus(self) -> None:
        """Reads what the last query has found, and starts the next one, for which nobody waits."""
        if self._query is not None:
            if self._query.poll() is None:
                return
            for line in self._query.communicate()[0].splitlines() if self._query.returncode == 0 else ():
                idx, busy, used, total = (part.strip() for part in line.split(","))
                name, text = f"GPU {idx}", f"{busy.replace('[N/A]', UNKNOWN)} %, {_gib(used)} of {_gib(total)} GiB"
                self._gpu_rows = [*(row for row in self._gpu_rows if row[0] != name), (name, text)]
        what = "--query-gpu=index,utilization.gpu,memory.used,memory.total"
        self._query = subprocess.Popen(
            ["nvidia-smi", what, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def _gib(mebibytes: str) -> str:
    """What nvidia-smi prints for memory; a part of a GPU (MIG) has `[N/A]`."""
    return f"{float(mebibytes) / 1024:.1f}" if mebibytes.isdecimal() else UNKNOWN

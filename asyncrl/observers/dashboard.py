"""The dashboard of a run: its metrics as a table for a terminal, drawn with Rich."""

from __future__ import annotations

import contextlib
import math
import shutil
import subprocess
import textwrap
import time
from collections import deque
from collections.abc import Mapping, Sequence

import psutil
from rich.console import Group, RenderableType
from rich.text import Text

from asyncrl.config.hooks import hooks
from asyncrl.observers.charts import Point, curve, number, resampled, sparkline
from asyncrl.observers.interval import largest_phases
from asyncrl.observers.metrics import MACHINE, METRICS, PHASES, describe
from asyncrl.observers.observer import Run
from asyncrl.observers.status import Record, Status
from asyncrl.observers.summary import UNKNOWN, duration

LEAST_WIDTH, LEAST_HEIGHT = 80, 20
"""Columns and rows of the smallest terminal that it fits."""

_HISTORY, _MOST_POINTS = 240, 4096
_LEAST_CURVE = 8  # rows of the return's curve, with its title
_SPARKLINE_AT_END = 60
_TREND_S = 60.0
_LEAST_SHARE = 0.01  # of a role's time
_RETURN, _LENGTH = "rollout/ep_rew_mean", "rollout/ep_len_mean"
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
        self._points: dict[str, list[Point]] = {_RETURN: [], _LENGTH: []}
        self._page = 0  # of the explanations, from 1; 0 is the table

    def add_status(self, status: Status) -> None:
        self._status = status
        if status.fps is not None and status.is_line:
            self._speeds.append(status.fps)

    def add_record(self, record: Record) -> None:
        self._scalars.update(record.scalars)
        now = record.scalars.get("time/time_elapsed")
        for name, points in self._points.items():
            value = record.scalars.get(name)
            if now is None or value is None or not math.isfinite(value):
                continue
            while points and points[-1].env_steps >= record.env_steps:  # the run has started again from a checkpoint
                points.pop()
            points.append(Point(record.env_steps, now, value))
            if len(points) > _MOST_POINTS:
                del points[1:-_HISTORY:2]

    def turn_page(self) -> None:
        """Shows the explanations in place of the table, their next page, or the table again after the last one."""
        self._page += 1

    def render(self, width: int, height: int, is_ascii: bool = False) -> RenderableType:
        """The table or a page of explanations, at most `width` columns and `height` rows."""
        pages = self._explanations(width, height - 4) if self._page > 0 else []
        if self._page > len(pages):
            self._page = 0
        head = [self._title(width, len(pages)), self._progress(width, is_ascii), Text("")]
        if self._page > 0:
            return Group(*head, *pages[self._page - 1])
        if not self._scalars:
            return Group(*head, *_block_rows("starting", self._starting(), width))
        head += self._sparklines(width, is_ascii)
        blocks = [
            ("where the time goes", self._times(2 if width < 119 else 3)),
            ("learning", self._learning()),
            ("environment's own numbers", self._extra_stats()),
            ("faults", self._faults()),
            ("machine", self.usage.rows()),
        ]
        head += self._policies(width, height - len(head) - 9)
        body = _columns([block for block in blocks if block[1]], width, height - len(head) - 1)
        num_rows = height - len(head) - len(body) - 1
        if num_rows >= _LEAST_CURVE and len(self._points[_RETURN]) > 1 and not is_ascii:
            rows = curve(self._points[_RETURN], width, num_rows - 2)
            head += [
                Text(METRICS[_RETURN], "bold"),
                *(Text.assemble((axis, "dim"), (line, "cyan")) for axis, line in rows),
                Text(""),
            ]
        return Group(*head, *body)

    def at_end(self, is_ascii: bool = False) -> list[Text]:
        """A row that stays on the terminal: the return's curve over the whole run; none without a curve."""
        points = self._points[_RETURN]
        if len(points) < 2:
            return []
        values = resampled(points, min(len(points), _SPARKLINE_AT_END))
        bars = sparkline(values, len(values), is_ascii)
        return [Text.assemble("return ", number(points[0].value), " ", (bars, "cyan"), " ", number(points[-1].value))]

    def _title(self, width: int, num_pages: int) -> Text:
        config = self._run.config
        ranks = f", {self._run.plan.num_ranks} ranks" if self._run.plan.num_ranks > 1 else ""
        text = f"{config.env_id}, {config.algorithm.name}{ranks}, {self._run.folder.name}"
        key = "?: explain  d: one line"
        if self._page > 0:
            key = "?: back" if self._page == num_pages else f"?: next (page {self._page} of {num_pages})"
        return Text.assemble((text[: width - len(key) - 1].ljust(width - len(key)), "bold"), (key, "dim"))

    def _progress(self, width: int, is_ascii: bool) -> Text:
        status = self._status
        if status is None:
            return Text("starting")
        steps = f" {status.env_steps:,} of {status.target_env_steps:,} steps ({100 * status.share:.1f} %)"
        times = f", {duration(status.elapsed_s)} elapsed"
        if status.remaining_s is not None:
            times += f", {duration(status.remaining_s)} left"
        text = f" {status.activity},{steps}" if status.activity is not None else steps
        text = (text + times)[:width]
        return with_bar(text, width - len(text), status.share, is_ascii)

    def _starting(self) -> list[tuple[str, str]]:
        """What the run starts; there are no metrics yet."""
        plan = self._run.plan
        environments = f"{plan.num_envs_per_worker} environments"
        rows = [("rollout workers", f"{plan.num_workers}, each with {environments}")]
        if plan.serial_mode:
            rows = [("this process", f"everything (--serial_mode), with {environments}")]
        elif plan.hogwild is not None:
            rows.append(("learners", "the rollout workers, which all train (--backend=hogwild)"))
        else:
            inference = ("inference", "in the rollout workers")
            if plan.num_inference_workers > 0:
                inference = (
                    "inference workers",
                    f"{plan.num_inference_workers} on {', '.join(plan.inference_devices)}",
                )
            rows += [inference, ("learner", f"on {plan.device}")]
        return [*rows, ("first metrics", "when training begins")]

    def _explanations(self, width: int, height: int) -> list[list[Text]]:
        """What each number of the table means, as pages of at most `height` rows."""
        shown = {"speed": "time/fps", "return": _RETURN, "length": _LENGTH}
        shown |= {title: name for name, title in _LEARNING.items() if name in self._scalars}
        shown |= {title: name for name, title in _FAULTS.items() if self._scalars.get(name)}
        if self._run.plan.num_policies > 1:
            shown |= {title: name for name, title in _POLICY_COLUMNS.items() if f"policy_0/{name}" in self._scalars}
        shown |= {name.removeprefix(_EXTRA): name for name in self._scalars if name.startswith(_EXTRA)}
        meanings = {title: describe(name) or "" for title, name in shown.items()}
        phases = (phase.value for (_, phase), share in self._run.phase_shares.items() if share >= _LEAST_SHARE)
        meanings |= {phase.replace("_", " "): PHASES[phase] for phase in phases}
        meanings |= {name: MACHINE.get(name.rstrip(" 0123456789"), "") for name, _ in self.usage.rows()}
        front = max(map(len, meanings)) + 2
        pages: list[list[Text]] = [[]]
        for title, meaning in meanings.items():
            rows = textwrap.wrap(meaning, width - front) or [""]
            if len(pages[-1]) + len(rows) > height:
                pages.append([])
            titles = [title, *[""] * (len(rows) - 1)]
            pages[-1] += [
                Text.assemble((f"{own:<{front}}", "cyan"), row) for own, row in zip(titles, rows, strict=True)
            ]
        return pages

    def _sparklines(self, width: int, is_ascii: bool) -> list[Text]:
        speed = None if self._status is None else self._status.fps
        rows = [("speed", number(speed), " steps/s", list(self._speeds), "")]
        for name, title in ((_RETURN, "return"), (_LENGTH, "length")):
            points = self._points[name]
            latest = points[-1].value if points else None
            rows.append((title, number(latest), "", [point.value for point in points], _trend(points)))
        value_width, trend_width = (max(len(row[idx]) for row in rows) for idx in (1, 4))
        room = width - value_width - trend_width - 17
        all_bars = [sparkline(values, room, is_ascii) for *_, values, _ in rows]
        bar_width = max(map(len, all_bars))
        return [
            *(
                Text.assemble(
                    (f"{title:<6} ", "dim"),
                    f"{value:>{value_width}}{unit:<8} ",
                    (f"{bars:<{bar_width}}", "cyan"),
                    f" {trend}",
                )
                for (title, value, unit, _, trend), bars in zip(rows, all_bars, strict=True)
            ),
            Text(""),
        ]

    def _times(self, num_phases: int) -> list[tuple[str, str]]:
        return [
            (f"{role} {phase.replace('_', ' ')}", f"{share:.0%}")
            for role, phases in largest_phases(self._run.phase_shares).items()
            for share, phase in phases[:num_phases]
            if share >= _LEAST_SHARE
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
        return found or [("none", "")]

    def _policies(self, width: int, most_rows: int) -> list[Text]:
        """One row for each of several policies, and an empty one."""
        count = self._run.plan.num_policies
        if count == 1:
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


def _trend(points: Sequence[Point]) -> str:
    """How the last value differs from that of a minute before, or from the first one."""
    if len(points) < 2:
        return ""
    end = points[-1]
    start = next(point for point in points if point.elapsed_s >= end.elapsed_s - _TREND_S)
    if start.elapsed_s == end.elapsed_s:
        start = points[-2]
    difference = end.value - start.value
    sign = "+" if difference >= 0 else "-"
    return f"{sign}{number(abs(difference))} in {duration(end.elapsed_s - start.elapsed_s)}"


def _block_rows(title: str, rows: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """A title, and names with their values beside them; if all values are short, their ends are aligned."""
    front, value_width = (max(map(len, column)) for column in zip(*rows, strict=True))
    if value_width > _NUMBER_WIDTH:
        value_width = 0
    lines = [f"{name:<{front}}  {value:>{value_width}}"[:width] for name, value in rows]
    return [Text(title[:width], "bold"), *map(Text, lines)]


def _columns(blocks: Sequence[tuple[str, Sequence[tuple[str, str]]]], width: int, height: int) -> list[Text]:
    """Blocks of named numbers side by side. Where there is no room the longest of a column loses its last rows."""
    count = max(1, min(len(blocks), 2 if width < 119 else 3 if width < 179 else 5))
    own_width = (width - 3 * (count - 1)) // count
    stacks: list[list[list[Text]]] = [[] for _ in range(count)]
    for title, rows in blocks:
        min(stacks, key=_num_rows).append(_block_rows(title, rows, own_width))
    for stack in stacks:
        while _num_rows(stack) > height:
            longest = max(stack, key=len)
            if len(longest) > 2:
                longest.pop()
            else:
                stack.pop()
    columns = [[line for block in stack for line in (Text(""), *block)][1:] for stack in stacks]
    lines = []
    for row in range(max(map(len, columns))):
        parts = [column[row] if row < len(column) else Text("") for column in columns]
        for part in parts[:-1]:
            part.pad_right(own_width + 3 - len(part))
        lines.append(Text.assemble(*parts))
    return lines


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
            ("cores, all programs", f"{psutil.cpu_percent() / 100 * (psutil.cpu_count() or 1):.1f}"),
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

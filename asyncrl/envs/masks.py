"""Finds masks of allowed actions in other places than `action_mask` in the observation: nothing reads them there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from asyncrl.envs.errors import ENVIRONMENT_EXCEPTIONS
from asyncrl.envs.interface import find_method
from asyncrl.envs.spec import Action, DiscreteAction, EnvSpec, TreeAction, mask_layout

_NAME = re.compile(r"mask|(legal|valid|avail|allow|possib|permit|feasib)\w*(action|move)", re.IGNORECASE)
_METHODS = ("action_masks", "action_mask", "get_action_mask", "valid_action_mask", "get_avail_actions")


class UnreadMasks:
    """Collects the places of masks in what an environment returns, unless its observations have a mask that is read."""

    def __init__(self, spec: EnvSpec) -> None:
        self._kinds = [spec.kinds[spec.kind_of(agent)] for agent in range(spec.num_agents)]
        self._agents = spec.agents
        self._places: dict[str, None] = {}
        trees = [kind.action for kind in self._kinds if isinstance(kind.action, TreeAction) and kind.action.num_logits]
        self._layout = f" Its layout is {mask_layout(trees[0])}." if trees else ""

    @property
    def findings(self) -> list[str]:
        """One sentence if there are masks that are not read."""
        if not self._places:
            return []
        return [
            f"{' and '.join(self._places)}: a mask of allowed actions is not read there, so forbidden actions are "
            f"taken. A mask must be in the observation, a Dict, under the key action_mask.{self._layout} "
            'docs/environments.md, "Masks in other places", has a wrapper of three lines'
        ]

    def look(self, observation: Any, info: Any, agent: int = 0) -> None:
        """Takes the observation of one agent, None if it has none now, and its info."""
        if (action := self._masked_action(agent)) is None:
            return
        for name, values in (("observation", observation), ("info", info)):
            whose = f"{name}s[agent]" if self._agents else name
            for path in _mask_paths(values, action):
                self._places[whose + "".join(f'["{key}"]' for key in path)] = None

    def look_at_methods(self, env: Any) -> None:
        """Looks for methods of an environment that was reset, or of one of its wrappers."""
        for agent in range(len(self._kinds)):
            if (action := self._masked_action(agent)) is None:
                continue
            for name in _METHODS:
                method = find_method(env, name)
                if callable(method) and _gives_mask(method, self._agents[agent : agent + 1], action):
                    self._places[f"{name}()"] = None

    def _masked_action(self, agent: int) -> Action | None:
        """The action that an unread mask may describe; None if the observation has a mask or nothing can be masked."""
        kind = self._kinds[agent]
        return None if kind.observation.num_mask or kind.action.num_logits == 0 else kind.action


def _gives_mask(method: Any, agents: tuple[str, ...], action: Action) -> bool:
    for arguments in ((), agents):
        with contextlib.suppress(*ENVIRONMENT_EXCEPTIONS):  # it may need other arguments
            return _is_mask(method(*arguments), action)
    return False


def _mask_paths(values: Any, action: Action) -> Iterator[tuple[str, ...]]:
    """Paths of masks in nested dicts, by their names and values."""
    for name, value in values.items() if isinstance(values, Mapping) else ():
        if not isinstance(name, str) or name.startswith("_"):
            continue
        if _NAME.search(name) and (_is_mask(value, action) or ("mask" not in name.lower() and _lists(value, action))):
            yield (name,)
        else:
            yield from ((name, *path) for path in _mask_paths(value, action))


def _is_mask(values: Any, action: Action) -> bool:
    """Whether these are zeros and ones, one for each choice of the action."""
    try:
        numbers = _flat(values)
        return numbers.size == action.num_logits and bool(np.isin(numbers, (0, 1)).all())
    except Exception:  # texts, objects
        return False


def _lists(values: Any, action: Action) -> bool:
    """Whether these are different choices of a Discrete action, those that are allowed."""
    if not isinstance(action, DiscreteAction) or not isinstance(values, (list, tuple, set, np.ndarray)):
        return False
    try:
        choices = np.asarray(list(values))
    except Exception:
        return False
    is_list = choices.ndim == 1 and choices.size > 0 and choices.dtype.kind in "iu"
    return is_list and set(choices.tolist()) <= set(range(action.start, action.start + action.n))


def _flat(values: Any) -> npt.NDArray[Any]:
    """Numbers of nested dicts and lists, one after the other."""
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if isinstance(values, (list, tuple)):
        return np.concatenate([_flat(value) for value in values])
    values = values.cpu() if hasattr(values, "cpu") else values  # a tensor
    return np.asarray(values, dtype=np.float64).reshape(-1)

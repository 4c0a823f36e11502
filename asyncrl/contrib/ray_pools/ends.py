"""The two ends between which a mode's samples travel: the receiver in the bridge, the sender in the pool."""

from __future__ import annotations

from asyncrl.config.plan import ResourcePlan
from asyncrl.contrib.ray_pools.batches import Receiver, Sender
from asyncrl.contrib.ray_pools.sent_gradients import GradientReceiver, GradientSender
from asyncrl.contrib.ray_pools.sent_rows import RowReceiver, RowSender
from asyncrl.contrib.ray_pools.sent_slots import SlotReceiver, SlotSender


def ends_of(plan: ResourcePlan) -> tuple[type[Receiver], type[Sender]]:
    """The receiver and the sender of a run."""
    if plan.hogwild is not None:
        return GradientReceiver, GradientSender
    return (SlotReceiver, SlotSender) if plan.replay is None else (RowReceiver, RowSender)

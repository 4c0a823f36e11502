"""Rollout workers on other machines: a pool of them is an actor of a Ray cluster, and a bridge stands for it here.

    learner's machine                                     another machine
    SlotLedger -- granted slots --> bridge ---- permits for slots ---> Pool: an arena of the same layout,
    SlotLedger <-- ready slots ---- bridge <--- batches of slots ----- its rollout workers, a PermitLedger
    WeightsPublisher -- weights --> bridge ---- newest weights ------> WeightsChannel of the pool

With a replay rows take the place of slots, and limits of rows that of grants (`asyncrl.contrib.ray_pools.sent_rows`).

A bridge is one process for each pool. For learner and runner it takes the place of the pool's rollout workers: it
consumes their granted slots, writes each slot that arrives into the slot of the same number, finishes it and announces
it as ready. So grants, order, lag and recovery are those of local workers.
"""

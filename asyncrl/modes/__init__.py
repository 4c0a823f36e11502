"""Ways of running, each in one folder: what its memory holds, its roles, its rules.

    settings -- plan --> mode_of(plan) --> Mode   `mode.py`: rules about settings, arrays, their size (no torch)
                                            |
                                            +--> Roles   `roles.py`: workers and learners, in processes or in one

    trajectories   slots that one learner grants
    slot_pools     slots that belong to their splits, because several policies or opponents play their columns
    replay         a ring of rows for each split
    hogwild        workers that train shared parameters, with private slots or replays
    tensors        environments on the learner's device, in one process

The core (`run/`) iterates over a mode and names none. A mode is added as a folder and an entry in `choice.py`.
"""

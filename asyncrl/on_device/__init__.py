"""Environments whose observations and actions are tensors on the learner's device: samples never leave it.

    TensorEnvGroup.step ──> Dataset ──> OnPolicyLearner.train
          ^                                    │
          └── action ── the same model <───────┘

One process turns both in strict order (serial mode): there is nobody to share the device with, so nothing of shared
memory, slots and rings is needed. Rows have the rules of slots (`asyncrl.buffers.layout`).
"""

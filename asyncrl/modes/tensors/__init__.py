"""Environments whose observations and actions are tensors on the learner's device: samples never leave it.

    TensorEnvGroup.step ──> Dataset ──> OnPolicyLearner.updates
          ^                                    │
          └── action ── the same model <───────┘

One process runs both in strict order (serial mode), so shared memory, slots and rings are not needed. Rows follow the
same rules as in slots (`asyncrl.buffers.layout`).
"""

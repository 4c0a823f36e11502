"""asyncrl trains a policy on a Gymnasium environment as fast as the machine allows.

One sample's way, from a step of an environment to a gradient:

    environment --step--> rollout worker --row--> slot (shared memory) --ready--> learner --dataset--> PPO or A2C
                             ^                       ^                                |
                             | actions               | values, log-probs              | versioned weights
                             +------ policy: in the worker, or in inference workers <-+

Rollout workers step environments and write rows into slots of one shared arena. The policy that chooses actions runs in
each worker (`local`) or in inference workers that batch requests (`central`). The learner takes full slots, trains, and
publishes weights. Between processes travel only integers: which slot, which split. `docs/architecture.md` says why.
"""

__version__ = "0.1.0"

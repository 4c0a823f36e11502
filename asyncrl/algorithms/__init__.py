"""Learning algorithms, one file each, and the mathematics that they share; `asyncrl.config.algorithms` has the records.

trajectories --GAE or V-trace--> samples --loss--> gradient        PPO, A2C        (losses.py, ppo.py, a2c.py)
replay --transitions--> targets --losses--> gradients              SAC, TD3, DQN   (sac.py, td3.py, dqn.py)
"""

from asyncrl.config.algorithms import Algorithm, register_algorithm

__all__ = ["Algorithm", "register_algorithm"]

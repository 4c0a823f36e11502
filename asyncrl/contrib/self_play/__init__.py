"""Self-play: a policy trains against a pool of its own frozen earlier versions.

learner --published weights--> pool --> opponents' weights in the arena --> rollout workers
rollout workers --results of games (reports)--> observer --> pool: Elo ratings --> records
"""

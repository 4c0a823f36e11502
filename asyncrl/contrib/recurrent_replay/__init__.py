"""Recurrent SAC and TD3 (`--use_rnn=True`), which learn from sequences of a replay: Kapturowski et al. 2019, R2D2."""

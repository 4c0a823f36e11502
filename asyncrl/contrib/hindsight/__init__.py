"""Hindsight experience replay (`--her_goals`): Andrychowicz et al. 2017, arXiv:1707.01495."""

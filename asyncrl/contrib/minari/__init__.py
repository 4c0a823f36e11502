"""Episodes of a trained policy as a dataset for offline learning, in the format of Minari (https://minari.farama.org)."""

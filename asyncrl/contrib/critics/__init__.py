"""Networks and critics of SAC from papers (`--critic`): SimBa, SimbaV2 and CrossQ."""

"""Importing this moves the process out of the process group of the one that has started it.

The fork server of a rank imports it before all else, so that the rank's children are in its group. torchrun stops a
rank by a signal to its whole group, and only the runner is to answer: a learner that died of it could not save.
"""

import os

os.setpgrp()

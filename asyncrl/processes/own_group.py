"""Importing this module moves the process out of the process group of the process that started it.

The fork server of a rank imports it first, so the rank's children are in the fork server's group. torchrun stops a rank
by a signal to the rank's whole group, and only the runner may react: a learner that it killed could not save.
"""

import os

os.setpgrp()

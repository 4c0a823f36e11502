"""Imported before NumPy, this module limits NumPy's BLAS to one thread, in this process and its children.

A policy that acts in NumPy multiplies small matrices: several threads wait for each other, and serial mode takes three
times the processor time.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

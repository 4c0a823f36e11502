"""Importing this before NumPy gives its BLAS one thread, in this process and its children.

A policy that acts in NumPy multiplies small matrices: more threads wait for one another, and serial mode takes three
times the processor time.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

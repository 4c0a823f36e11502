"""Stands in for the training command: prints what it is told as a rank, and fails as its first argument says.

The argument `CODE RANK ATTEMPTS`: that rank ends with the code in its first attempts.
"""

import os
import sys

from asyncrl.processes.torchrun import take_rank

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"].partition(".")[0])
address = take_rank(os.environ)
assert address is not None
print(f"rank {address.rank} of {address.num_ranks}, {address.local_rank} of {address.num_local_ranks} on its machine")
print(f"store {address.host} {address.port} {address.has_store} {address.meeting}, COLOUR={os.environ.get('COLOUR')}")
code, rank, num_attempts = map(int, sys.argv[1].split())
sys.exit(code if rank == address.rank and attempt < num_attempts else 0)

"""Resources of this machine, found without importing torch: CPU cores and CUDA devices that may be used."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from asyncrl.config import cgroups, host
from asyncrl.native import LIBRARY


@dataclass(frozen=True)
class Machine:
    """The resources that a plan is made for.

    Attributes:
        cores: CPU cores that this process may use.
        torch_has_cuda: whether the installed torch was built for CUDA.
        num_cuda_devices: devices that the CUDA driver shows to this process.
        num_ranks: learners that train one policy together, on all machines.
        num_local_ranks: ranks on this machine, which share its resources.
        local_rank: index of this process among them.
        shares_words: whether processes can share words (`asyncrl.buffers.words`): on x86-64, and elsewhere with the
            native core.
    """

    cores: int
    torch_has_cuda: bool = False
    num_cuda_devices: int = 0
    num_ranks: int = 1
    num_local_ranks: int = 1
    local_rank: int = 0
    shares_words: bool = True

    @property
    def cuda_is_usable(self) -> bool:
        return self.torch_has_cuda and self.num_cuda_devices > 0

    @staticmethod
    def detect() -> Machine:
        """The machine that this process runs on, as the only rank."""
        cuda = _cuda_of_torch()
        return Machine(
            available_cores(),
            cuda is not None,
            _num_cuda_devices(cuda) if cuda is not None else 0,
            shares_words=shares_words(),
        )


def shares_words() -> bool:
    """Whether processes of this machine can share words, see `Machine`."""
    return host.keeps_store_order() or LIBRARY.exists()


def available_cores() -> int:
    """Cores that this process may use; `taskset` or the CPU limit of a container may reduce them."""
    cores = host.num_usable_cores()
    return min(cores, cgroups.cpu_quota() or cores)


def _cuda_of_torch() -> int | None:
    """The major version of the CUDA that torch was built for; None if it was built without.

    It reads torch/version.py as text: importing torch takes longer than everything else here together.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)", text, flags=re.MULTILINE)
    return None if version is None else int(version.group(1))


def _num_cuda_devices(needed: int) -> int:
    """Asks the CUDA driver, which follows CUDA_VISIBLE_DEVICES.

    0 without a driver or without its answer, or if the driver is for an older major version of CUDA than `needed`.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    version = ctypes.c_int(0)  # such as 12080
    is_known = driver.cuDriverGetVersion(ctypes.byref(version)) == 0
    return 0 if is_known and version.value // 1000 < needed else count.value

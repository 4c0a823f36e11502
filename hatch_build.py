"""Compiles the native core where a C compiler is found; without one NumPy does the same work."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("asyncrl", "native")
FLAGS = ["-O3", "-fPIC", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi"]
AVX2 = ["-mavx2", "-mfma"]
KERNELS = {
    "x86_64": {
        # No more than what `core.c` asks the processor for: a level such as x86-64-v3 has other instructions, too.
        "avx512": [
            *AVX2,
            *map("-mavx512{}".format, ("f", "dq", "bw", "vl")),
            "-mprefer-vector-width=512",
            "-DLANES=16",
        ],
        "avx2": [*AVX2, "-DLANES=8"],
        "sse2": ["-DLANES=4"],
    }
}
OTHERS = {"generic": ["-DLANES=4"]}


class NativeCore(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled library to wheels and to editable installations."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = Path(self.root) / SOURCE / ("_core.dylib" if sys.platform == "darwin" else "_core.so")
        library.unlink(missing_ok=True)
        if os.environ.get("ASYNCRL_NO_NATIVE"):
            return
        try:
            compile_core(Path(self.root) / SOURCE, library)
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"no native core: {error}; NumPy computes updates, which is slower")
            return
        build_data["artifacts"].append(library.relative_to(self.root).as_posix())
        # ctypes needs no interface of one Python version: the wheel is for the platform alone.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def compile_core(source: Path, library: Path) -> None:
    """Compiles and links; a compiler that is missing raises OSError, one that fails CalledProcessError."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as folder:
        objects = []
        for name, flags in KERNELS.get(platform.machine(), OTHERS).items():
            objects.append(f"{folder}/{name}.o")
            _run([*compiler, *FLAGS, *flags, f"-DSUFFIX={name}", "-c", str(source / "kernels.c"), "-o", objects[-1]])
        objects.append(f"{folder}/core.o")
        _run([*compiler, *FLAGS, "-c", str(source / "core.c"), "-o", objects[-1]])
        unfinished = library.with_suffix(f".{os.getpid()}.part")
        _run([*compiler, "-shared", "-o", str(unfinished), *objects, "-lm"])
        unfinished.replace(library)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)

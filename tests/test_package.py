"""What `import asyncrl` costs and gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import asyncrl


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, asyncrl; print(sorted({'torch', 'gymnasium', 'numpy', 'pydantic'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"


def test_every_name_that_is_exported_is_there_and_no_other() -> None:
    assert all(callable(getattr(asyncrl, name)) for name in asyncrl.__all__)
    with pytest.raises(AttributeError, match="no attribute 'register_everything'"):
        asyncrl.register_everything  # noqa: B018

#!/usr/bin/env bash
# Runs the tests of the native core with address and undefined-behaviour sanitizers, in a copy that is compiled with them.
#
#     scripts/check_native.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
place=$(mktemp -d "${TMPDIR:-/tmp}/asyncrl-native-XXXXXX")
trap 'rm -rf "$place"' EXIT
git ls-files -z | tar --create --null --files-from=- | tar --extract --directory="$place"
cd "$place"
CC="${CC:-cc} -g -fsanitize=address,undefined -fno-sanitize-recover=all" "$python" -c \
    "import pathlib, hatch_build as h; h.compile_core(h.SOURCE, pathlib.Path(h.SOURCE, '_core.so'))"
export PYTHONPATH=$PWD ASAN_OPTIONS=detect_leaks=0
LD_PRELOAD=$(${CC:-cc} -print-file-name=libasan.so) "$python" -m pytest -q -n 0 tests/learner/test_array_update.py tests/inference/test_array_policy.py

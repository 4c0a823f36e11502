#!/usr/bin/env bash
# Whether each feature of asyncrl/contrib can be deleted: contracts, types, collection of the tests and a smoke set, in a
# copy without its folder and its tests. With the argument `core` also the whole test suite, in a copy without all features.
#
#     scripts/check_seam.sh [NAME ...] [core]    features to delete one by one [all, and then all together]
#     scripts/check_seam.sh together             all of them together only: what CI runs
set -euo pipefail
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python
place=$(mktemp -d "${TMPDIR:-/tmp}/asyncrl-seam-XXXXXX")
trap 'rm -rf "$place"' EXIT
export ASYNCRL_NO_NATIVE=1  # it is not compiled in the copies
smoke=(tests/test_command.py tests/modes tests/test_validate.py)

copy_without() {
    rm -rf "$place/copy"
    mkdir "$place/copy"
    git ls-files -z | tar --create --null --files-from=- | tar --extract --directory="$place/copy"
    for name in "$@"; do
        rm -r "$place/copy/asyncrl/contrib/$name" "$place/copy/tests/contrib/$name"
    done
    cd "$place/copy"
}

check() {
    PYTHONPATH=$PWD "$python" -c "import asyncrl; assert asyncrl.__file__.startswith('$PWD'), asyncrl.__file__"
    PYTHONPATH=$PWD "${python%/*}/lint-imports" >contracts.log || { cat contracts.log; exit 1; }
    PYTHONPATH=$PWD "$python" -m mypy --cache-dir="$place/mypy"  # one cache: each copy has the same path
    PYTHONPATH=$PWD "$python" -m pytest --collect-only -q -n 0 >collection.log || { tail -20 collection.log; exit 1; }
}

names=()
for folder in asyncrl/contrib/*/; do
    [ -f "$folder/hooks.py" ] && names+=("$(basename "$folder")")
done
with_core=no
one_by_one=("${names[@]}")
asked=()
for argument in "$@"; do
    case "$argument" in
        core) with_core=yes ;;
        together) one_by_one=() ;;
        *) asked+=("$argument") ;;
    esac
done
if [ "${#asked[@]}" -gt 0 ]; then one_by_one=("${asked[@]}"); fi
for name in "${one_by_one[@]}"; do
    echo "+ without $name ($SECONDS s)"
    (copy_without "$name" && check && PYTHONPATH=$PWD "$python" -m pytest -q "${smoke[@]}")
done
if [ "${#asked[@]}" -gt 0 ]; then
    echo "each of ${asked[*]} can be deleted; this took $SECONDS s"
    exit
fi
echo "+ without ${names[*]} ($SECONDS s)"
(copy_without "${names[@]}" && check && PYTHONPATH=$PWD "$python" -m pytest -q "${smoke[@]}")
if [ "$with_core" = yes ]; then
    (copy_without "${names[@]}" && PYTHONPATH=$PWD "$python" -m pytest -q)
fi
echo "without ${names[*]} the rest is complete; this took $SECONDS s"

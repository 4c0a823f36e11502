#!/usr/bin/env bash
# Builds the sdist, and from it the wheel, installs the wheel into a fresh environment, and uses it from an empty folder.
#
#   scripts/check_packages.sh [PYTHON]     the dependencies are those of PYTHON's environment [.venv/bin/python]
#   scripts/check_packages.sh --download   all dependencies are installed anew, by pip
set -euo pipefail
cd "$(dirname "$0")/.."
from=${1:-.venv/bin/python}
python=python3
[ "$from" = --download ] || python=$from

place=$(mktemp -d "${TMPDIR:-/tmp}/asyncrl packages XXXXXX")
trap 'rm -rf "$place"' EXIT
"$python" -m venv --without-pip "$place/fresh"
fresh="$place/fresh/bin"

if [ "$from" = --download ]; then
    "$python" -m build --outdir "$place/dist" .
    "$python" -m pip --python "$fresh/python" install --quiet "$place"/dist/*.whl "gymnasium[classic-control]"
else
    # Without network: what builds and what is needed are there already, only asyncrl is installed anew.
    "$python" -m build --no-isolation --outdir "$place/dist" . >"$place/build.log" || { cat "$place/build.log"; exit 1; }
    "$python" -m pip --python "$fresh/python" install --quiet --no-deps --no-index "$place"/dist/*.whl
    packages=$("$fresh/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
    "$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$packages/dependencies.pth"
fi
ls "$place/dist"

cd "$place"
"$fresh/python" - <<'END'
import pathlib, sys
import asyncrl
from asyncrl.config.presets import preset_names, presets_folder
package = pathlib.Path(asyncrl.__file__).parent
assert pathlib.Path(sys.prefix) in package.parents, f"{package} is not in {sys.prefix}"
assert presets_folder() == package / "configs" and "mujoco" in preset_names(), "the wheel lacks its presets"
assert (package / "py.typed").exists(), "the wheel lacks py.typed"
from asyncrl.contrib.zoo.policies import zoo_folder, zoo_names
assert package in zoo_folder().parents and "CartPole-v1" in zoo_names(), "the wheel lacks the zoo"
END
"$fresh/asyncrl" --version
"$fresh/asyncrl" validate --env=CartPole-v1
"$fresh/asyncrl" train --env=CartPole-v1 --experiment=first --num_workers=1 --train_for_env_steps=4000 --quiet
"$fresh/asyncrl" evaluate --experiment=first --episodes=2
"$fresh/asyncrl" doctor --seconds=0
echo "the wheel works in a fresh environment"

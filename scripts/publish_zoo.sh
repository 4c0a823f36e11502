#!/usr/bin/env bash
# Uploads each policy of the folder zoo to the Hugging Face Hub, as asyncrl/NAME, the address that its page has.
#
# Needs `pip install -e ".[hub]"` and a token that may write: `hf auth login`, or HF_TOKEN. Not run yet.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${HF_TOKEN:-}" ] && ! hf auth whoami >/dev/null 2>&1; then
    echo "The Hugging Face Hub needs a token: run hf auth login, or set HF_TOKEN." >&2
    exit 2
fi
shopt -s nullglob
for folder in zoo/*/; do
    name=$(basename "$folder")
    echo "asyncrl/$name"
    hf upload "asyncrl/$name" "$folder" . --delete="checkpoints/*" --commit-message="$name, of the zoo"
done

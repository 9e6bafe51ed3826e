#!/bin/bash
# From a fresh clone: sets up .venv, compiles a base-size BERT once and runs it at many shapes, each checked against eager PyTorch.
# DISC_VENV and PYTHON as in tools/setup.sh; of its extras only what this needs, which is less than the tests do. Exit code 1 when a result is further than 1e-4 from eager's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export DISC_EXTRAS="${DISC_EXTRAS:-compile,hf}" DISC_GROUPS="${DISC_GROUPS-}"
echo "Setting up the virtual environment (the first time takes a few minutes) ..." >&2
. tools/setup.sh
python tools/quickstart.py

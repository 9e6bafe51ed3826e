#!/bin/bash
# Everything a change must pass: build, ruff, pyright, lit, pytest. From a fresh checkout it makes .venv first.
#   --sanitize  also builds the runtime with ASan, UBSan and TSan and runs its C++ tests under each
#   --rest      also every other case of the tests that have many, which a plain run leaves out for time
#   --long      --rest, also the tests marked `long`, and all cases of those marked `sampled`
# DISC_VENV, DISC_EXTRAS and DISC_GROUPS as in tools/setup.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sanitize=0
rest=0
long=()
for argument in "$@"; do
  case "$argument" in
    --sanitize) sanitize=1 ;;
    --rest) rest=1 ;;
    --long) long=(--long) rest=1 ;;
    *) echo "usage: tools/test.sh [--sanitize] [--rest] [--long]" >&2; exit 1 ;;
  esac
done

step() { echo "== $1" >&2; }

step "setup and build"
. tools/setup.sh

step "ruff"
ruff check .
ruff format --check .

step "pyright, and lit beside it"
mkdir -p build
pyright --pythonpath "$(command -v python)" >build/pyright.txt 2>&1 &
types=$!
lit --quiet tests/ir tests/codegen
wait "$types" || { cat build/pyright.txt; exit 1; }
tail -n 1 build/pyright.txt

step "pytest"
tests() { python -m pytest -m "not gpu" -n 2 --dist worksteal "${long[@]}" "$@"; }
tests --half first
if [ "$rest" = 1 ]; then
  step "pytest: the other cases"
  tests --half second
fi

if [ "$sanitize" = 1 ]; then
  step "host programs for the sanitizers"
  python tests/ral/make_host_programs.py build/host_programs
  for kind in address undefined thread; do
    step "sanitizer: $kind"
    cmake -S . -B "build/sanitize-$kind" -G Ninja -DDISC_SANITIZE="$kind" -DCMAKE_BUILD_TYPE=RelWithDebInfo >/dev/null
    cmake --build "build/sanitize-$kind" --parallel 2
    ctest --test-dir "build/sanitize-$kind" --output-on-failure
  done
fi

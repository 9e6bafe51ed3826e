#!/bin/bash
# Everything a change must pass: build, ruff, pyright, lit, pytest. From a fresh checkout it makes .venv first.
#   --sanitize  also builds the runtime with ASan, UBSan and TSan and runs its C++ tests under each
#   --rest      also every other case of the tests that have four and more, which a plain run leaves out for time: of a commit those that it
#               runs of the next one. DISC_TEST_TURN: another number than that of the commit
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

# Each of the processes that tests start would compile the sources of all modules again.
unset PYTHONDONTWRITEBYTECODE

step() { echo "== $1" >&2; }

step "setup and build"
. tools/setup.sh

step "ruff"
ruff check .
ruff format --check .

# They take up what pytest leaves of two cores where a test waits for a server. What they find is printed at once, and fails the whole behind it.
beside() {
  renice -n 10 -p "$BASHPID" >/dev/null
  "$@" >"build/$1.txt" 2>&1 || { cat "build/$1.txt" >&2; return 1; }
}

# So a run before a commit and one behind it, as CI's, are both halves.
DISC_TEST_TURN="${DISC_TEST_TURN:-$(git rev-list --count HEAD 2>/dev/null || echo 0)}"
export DISC_TEST_TURN

step "pytest, and lit and pyright beside it"
mkdir -p build
beside lit --quiet --workers 1 tests/ir tests/codegen &
lit=$!
beside pyright --pythonpath "$(command -v python)" &
types=$!
tests() { python -m pytest -m "not gpu" -n 2 --dist worksteal "${long[@]}" "$@"; }
passed=1
tests --half first || passed=0
wait "$lit" || passed=0
wait "$types" || passed=0
tail -n 1 build/pyright.txt
[ "$passed" = 1 ] || exit 1
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

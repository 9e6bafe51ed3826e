# Sourced by tools/test.sh and by people: makes the virtual environment, installs the project into it, and activates it.
# DISC_VENV: its folder (default .venv). DISC_EXTRAS: extras to install (default compile,test). Python: $PYTHON or python3.11.
# Nothing outside the folder is touched. A second run is quick: a stamp holds the hash of pyproject.toml, the constraints and the extras.
# tools/constraints.txt has the versions that were tested, where pyproject.toml gives ranges.

disc_setup() {
  local root venv extras stamp wanted constraints
  root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)" || return 1
  venv="${DISC_VENV:-$root/.venv}"
  extras="${DISC_EXTRAS:-compile,test}"
  stamp="$venv/disc-setup.stamp"
  constraints="$root/tools/constraints.txt"
  wanted="$(cat "$root/pyproject.toml" "$constraints" | sha256sum | cut -d' ' -f1) $extras"
  if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3.11}" -m venv "$venv" || return 1
  fi
  # shellcheck disable=SC1091
  . "$venv/bin/activate" || return 1
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    # torch first: what comes later must fit the pinned version, not the other way round.
    python -m pip install --quiet "torch==2.13.0" || return 1
    python -m pip install --quiet "scikit-build-core>=1.1" "nanobind>=3.1" cmake ninja || return 1
    python -m pip install --quiet --no-build-isolation --constraint "$constraints" --editable "$root[$extras]" || return 1
    echo "$wanted" >"$stamp"
  else
    # The extension alone; ninja does nothing when no source changed.
    python -m pip install --quiet --no-build-isolation --no-deps --editable "$root" || return 1
  fi
}

disc_setup

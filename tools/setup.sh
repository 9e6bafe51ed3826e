# Sourced by tools/test.sh and by people: makes the virtual environment, installs the project into it, and activates it.
# DISC_VENV: its folder (default .venv). Python: $PYTHON or python3.11. DISC_EXTRAS: extras to install (default: what the tests need).
# DISC_GROUPS: groups of development tools, such as test,bench,docs,release (default test; "" = none).
# Nothing outside the folder is touched. A second run is quick: a stamp holds the hash of pyproject.toml, the constraints and these choices.
# tools/constraints.txt has the versions that were tested, where pyproject.toml gives ranges.

disc_setup() {
  local root venv extras groups group stamp wanted constraints
  root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)" || return 1
  venv="${DISC_VENV:-$root/.venv}"
  extras="${DISC_EXTRAS:-compile,cuda,onnx,otel,remote,sentences,serve,sign,text,tune}"
  groups=()
  for group in $(tr , ' ' <<<"${DISC_GROUPS-test}"); do groups+=(--group "$root/pyproject.toml:$group"); done
  stamp="$venv/disc-setup.stamp"
  constraints="$root/tools/constraints.txt"
  wanted="$(cat "$root/pyproject.toml" "$constraints" | sha256sum | cut -d' ' -f1) $extras ${groups[*]}"
  if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3.11}" -m venv "$venv" || return 1
  fi
  # shellcheck disable=SC1091
  . "$venv/bin/activate" || return 1
  if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    # torch first: what comes later must fit the pinned version, not the other way round.
    echo "setup: pip" >&2
    python -m pip install --quiet --upgrade "pip>=25.1,<27" || return 1 # knows --group
    echo "setup: PyTorch" >&2
    python -m pip install --quiet "torch==2.13.0" || return 1
    echo "setup: build tools" >&2
    python -m pip install --quiet "scikit-build-core>=1.1" "nanobind>=3.1" cmake ninja || return 1
    echo "setup: disc and the other packages; its C++ runtime is compiled, which takes minutes" >&2
    python -m pip install --quiet --no-build-isolation --constraint "$constraints" --editable "$root[$extras]" "${groups[@]}" || return 1
    echo "$wanted" >"$stamp"
  else
    # The extension alone; ninja does nothing when no source changed.
    python -m pip install --quiet --no-build-isolation --no-deps --editable "$root" || return 1
  fi
}

disc_setup

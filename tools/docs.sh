#!/usr/bin/env bash
# The documentation site in build/site, from docs/, README and the docstrings; without the network. Dead links and settings without a word
# are errors. Needs the group `docs`.   tools/docs.sh [serve]   serve: shows it on http://127.0.0.1:8002.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python tools/docs.py --check || { echo "docs/settings.md is stale: python tools/docs.py --write" >&2; exit 1; }
python tools/docs.py build/docs
export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then
  exec python -m mkdocs serve --config-file tools/mkdocs.yml --dev-addr 127.0.0.1:8002
fi
python -m mkdocs build --strict --config-file tools/mkdocs.yml
echo "build/site/index.html"

#!/bin/sh
# Checks disc on this machine's NVIDIA GPU with what tools/gpu_prepare.sh left in build/gpu. See gpu_check.py for its options.
cd "$(dirname "$0")/.." && exec python3 tools/gpu_check.py "$@"

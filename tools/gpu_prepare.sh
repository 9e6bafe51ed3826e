#!/bin/sh
# Makes build/gpu, the folder that tools/gpu_check.sh takes along to a machine with an NVIDIA GPU. See gpu_prepare.py for its options.
cd "$(dirname "$0")/.." && exec python tools/gpu_prepare.py "$@"

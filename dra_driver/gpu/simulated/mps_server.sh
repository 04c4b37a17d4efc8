#!/bin/sh
# nvidia-cuda-mps-server of a simulated driver: there is no CUDA, so there is nothing to serve.
printf 'nvidia-cuda-mps-server is started by nvidia-cuda-mps-control alone.\n' >&2
exit 1

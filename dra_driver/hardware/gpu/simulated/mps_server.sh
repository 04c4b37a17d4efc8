#!/bin/sh
# nvidia-cuda-mps-server of a simulated driver: without CUDA it has no clients.
printf 'nvidia-cuda-mps-server is started only by nvidia-cuda-mps-control.\n' >&2
exit 1

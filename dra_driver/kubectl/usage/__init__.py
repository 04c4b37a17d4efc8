"""Read and sum up what claims use of their GPUs, for people's commands."""

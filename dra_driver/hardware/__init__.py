"""Read and change GPUs and their files."""

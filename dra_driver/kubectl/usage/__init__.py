"""Read and summarize the GPU use of claims."""

"""What claims use of their GPUs, and what is wrong about it. Pure."""

"""Read the use of GPUs, attribute it to claims (``node/usage/``), serve it, and write findings to a file."""

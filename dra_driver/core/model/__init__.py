"""Plain values that all packages share: claims, GPUs, MIG partitions, terms and ids."""

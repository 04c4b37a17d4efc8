"""Changes GPUs as claims need them, and restores them. The caller holds the locks of the GPUs."""

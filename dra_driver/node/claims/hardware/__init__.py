"""Change GPUs as claims need them, and restore them. The caller holds the locks of the GPUs."""

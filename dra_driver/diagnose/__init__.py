"""Check a cluster, a node or a GPU, and find the broken layer."""

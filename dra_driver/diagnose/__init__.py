"""Find out whether a cluster, a node or a GPU is right, and which layer is broken."""

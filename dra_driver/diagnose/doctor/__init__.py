"""Names the first broken layer between a GPU and a container: what was seen, what was expected, what to do.

Checks are values (`finding`), pure over facts that a reader has read before: of an API server, a file or a node.
The modules are imported one by one, because the checks of a node must not load those of a cluster.
"""

"""Find the first broken layer between a GPU and a container; report the observation, the expectation and the next step.

Checks (`finding`) do no I/O: they evaluate facts of an API server, a file or a node that a reader collected.
The package imports no module itself: the checks of a node must not load the cluster's.
"""

"""``dra-driver hardware-check``: compare a real GPU with the assumptions of this driver and its simulation.

Readers run in child processes; judges do no I/O, so that a report can be judged again on another machine. The node
process never imports this package.
"""

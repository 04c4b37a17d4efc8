"""``dra-driver hardware-check``: compare a real GPU with the assumptions of this driver and its simulation.

Readers run in child processes; judges do no I/O, so that another machine can judge a report again. The node
process never imports this package.
"""

"""``dra-driver hardware-check``: compare a real GPU with what this driver and its simulation assume.

The driver was written and tested without GPUs. Each check reads one part of a real machine and compares it with an
assumption of the code. Reading (``read_*.py``, in child processes) and judging (``judge_*.py``, pure functions) are
separate, so that a report can be judged again on another machine.

The node process never imports this package.
"""

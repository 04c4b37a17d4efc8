"""The journal of claims in SQLite, and the backup of what the driver changed on GPUs: `Journal`.

Other packages import from here, not from the modules inside.
"""

from dra_driver.node.claims.journal.journal import Journal

__all__ = ["Journal"]

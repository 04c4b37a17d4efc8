"""What each GPU of a node may be published as: policies of an administrator, and what is in use already.

Owns reading policies from a folder (``source.py``), choosing the one that counts for a GPU and keeping what is in use
(``resolve.py``, ``settle.py``). Refuses to know where the folder's content comes from, the journal (uses are handed in)
and what terms mean for slices and claims.
"""

from dra_driver.policy.resolve import resolve
from dra_driver.policy.source import PolicySource

__all__ = ["PolicySource", "resolve"]

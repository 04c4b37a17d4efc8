"""The journal of claims in SQLite, and the backup of the driver's changes on GPUs. Other packages import from here."""

from dra_driver.node.claims.journal.journal import Journal

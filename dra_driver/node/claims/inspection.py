"""The journal and its backups read without changing them, for people; see `journal.inspect`."""

from dra_driver.node.claims.boot import BOOT_ID, read_boot_id
from dra_driver.node.claims.entry import AssignedDevice, Entry, OrphanedPartition, State
from dra_driver.node.claims.journal.backups import GpuStateBackup
from dra_driver.node.claims.journal.inspect import GpuNote, JournalContent, read_backups, read_journal, read_names
from dra_driver.node.claims.processes import living_runs

__all__ = [
    "BOOT_ID",
    "AssignedDevice",
    "Entry",
    "GpuNote",
    "GpuStateBackup",
    "JournalContent",
    "OrphanedPartition",
    "State",
    "living_runs",
    "read_backups",
    "read_boot_id",
    "read_journal",
    "read_names",
]

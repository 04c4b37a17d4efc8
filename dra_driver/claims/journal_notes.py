"""What the journal knows about GPUs, beside the claims that have them.

Owns notes about what this driver changed on a GPU (``mig.manager.GpuNotes``) and partitions that no claim has any more.
Refuses to know what a note means.
"""

from collections.abc import Mapping, Sequence

from dra_driver.claims import journal_rows as rows
from dra_driver.claims import journal_values as values
from dra_driver.claims.entry import Stray
from dra_driver.claims.journal_database import Database
from dra_driver.model.ids import GpuUuid


class GpuBook(Database):
    """The part of the journal that is about GPUs. Thread-safe; errors and waits as `Database`."""

    def gpu_note(self, gpu: GpuUuid, key: str) -> str | None:
        """The note's value, None without one."""
        with self._reading("read a GPU's note") as connection:
            query = "SELECT value FROM gpu_note WHERE gpu_uuid = ? AND key = ?"
            row = connection.execute(query, (gpu, key)).fetchone()
            return None if row is None else values.text("value", row[0])

    def set_gpu_note(self, gpu: GpuUuid, key: str, value: str) -> None:
        """Write it; durable on return."""
        with self._writing("note a change of a GPU", durable=True) as connection:
            connection.execute("INSERT OR REPLACE INTO gpu_note VALUES (?, ?, ?, ?)", (gpu, key, value, self.boot_id))

    def clear_gpu_note(self, gpu: GpuUuid, key: str) -> None:
        """Remove it, if it is there; durable on return."""
        with self._writing("clear a GPU's note", durable=True) as connection:
            connection.execute("DELETE FROM gpu_note WHERE gpu_uuid = ? AND key = ?", (gpu, key))

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]:
        """GPUs that have such a note, sorted."""
        return tuple(sorted(gpu for gpu, keys in self.noted_gpus().items() if key in keys))

    def noted_gpus(self) -> Mapping[GpuUuid, frozenset[str]]:
        """Keys of the notes of every GPU that has one. Mostly there are none, and never more than a few per GPU."""
        found: dict[GpuUuid, frozenset[str]] = {}
        with self._reading("read the notes of GPUs") as connection:
            for gpu, key in connection.execute("SELECT gpu_uuid, key FROM gpu_note"):
                uuid = GpuUuid(values.text("gpu_uuid", gpu))
                found[uuid] = found.get(uuid, frozenset()) | {values.text("key", key)}
        return found

    def drop_older_notes(self, keys: Sequence[str]) -> None:
        """Remove notes of earlier boots about what no GPU keeps over one; nothing when this boot's id is unknown."""
        if self.boot_id:
            with self._writing("drop notes of an earlier boot", durable=True) as connection:
                for key in keys:
                    query = "DELETE FROM gpu_note WHERE key = ? AND boot_id NOT IN ('', ?)"
                    connection.execute(query, (key, self.boot_id))

    def strays(self) -> tuple[Stray, ...]:
        """Partitions that this driver made, and whose claim is not in the journal any more."""
        with self._reading("list partitions of nobody") as connection:
            return tuple(rows.strays(connection.execute(rows.SELECT_STRAYS)))

    def forget_stray(self, stray: Stray) -> None:
        """The partition is gone; durable. Does nothing when a claim has it (again)."""
        with self._writing("forget a partition", durable=True) as connection:
            if stray in tuple(rows.strays(connection.execute(rows.SELECT_STRAYS))):
                connection.execute("DELETE FROM mig WHERE uid = ? AND position = ?", (stray.uid, stray.position))

"""GPU notes in memory; the driver keeps them in its journal."""

from dra_driver.core.errors import StorageError
from dra_driver.core.model.ids import GpuUuid


class FakeGpuNotes:
    """`gpu.notes.GpuNotes`. ``log`` has the changes in order; while ``full`` is set every write fails."""

    def __init__(self) -> None:
        self.values: dict[tuple[GpuUuid, str], str] = {}
        self.log: list[str] = []
        self.full = False

    def gpu_note(self, gpu: GpuUuid, key: str) -> str | None:
        return self.values.get((gpu, key))

    def set_gpu_note(self, gpu: GpuUuid, key: str, value: str) -> None:
        self._write(f"set {key}")
        self.values[gpu, key] = value

    def clear_gpu_note(self, gpu: GpuUuid, key: str) -> None:
        self._write(f"clear {key}")
        self.values.pop((gpu, key), None)

    def gpus_with_note(self, key: str) -> tuple[GpuUuid, ...]:
        return tuple(gpu for gpu, held in self.values if held == key)

    def _write(self, what: str) -> None:
        if self.full:
            raise StorageError("no space left on device")
        self.log.append(what)

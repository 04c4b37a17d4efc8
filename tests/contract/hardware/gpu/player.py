"""Other programs that act on a node's GPUs, for the fake NVML library and for the simulation."""

from dra_driver.hardware.gpu.backend import GpuBackend
from tests.fakes.nvml.state import State
from tests.fakes.simulated_gpus import SimulatedBackend


class Player:
    """Plays the hardware and other people on the node, for either backend, by the GPU's minor."""

    def __init__(self, backend: GpuBackend, state: State | None) -> None:
        self.backend, self.state = backend, state
        self.uuids = [gpu.uuid for gpu in backend.snapshot().gpus]

    @property
    def simulated(self) -> SimulatedBackend:
        assert isinstance(self.backend, SimulatedBackend)
        return self.backend

    def set_busy(self, minor: int, busy: bool) -> None:
        if self.state is not None:
            self.state.configure(minor, clients=int(busy))
        else:
            self.simulated.set_busy(self.uuids[minor], "another process" if busy else None)

    def use(self, minor: int, gi_id: int, in_use: bool) -> None:
        if self.state is not None:
            self.state.use(minor, gi_id, in_use)
        else:
            self.simulated.set_in_use(self.uuids[minor], gi_id, in_use)

    def create(self, minor: int, profile_id: int, start: int, compute: str = "full") -> None:
        if self.state is not None:
            self.state.foreign_create(minor, profile_id, start, compute)
        else:
            self.simulated.foreign_create(self.uuids[minor], profile_id, start, compute)

    def destroy(self, minor: int, gi_id: int) -> None:
        if self.state is not None:
            self.state.foreign_destroy(minor, gi_id)
        else:
            self.simulated.foreign_destroy(self.uuids[minor], gi_id)

    def lose(self, minor: int) -> None:
        if self.state is not None:
            self.state.lose(minor)
        else:
            self.simulated.mark_lost(minor, "lost on purpose")

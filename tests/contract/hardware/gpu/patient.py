"""Hardware that falls ill and recovers, for the fake NVML library and for the simulation."""

from dra_driver.core.model.health import HealthEvent, HealthReading, RecoveryAction
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import GpuBackend
from dra_driver.hardware.gpu.simulated.faults import FailureMode
from tests.fakes.nvml.state import DOUBLE_BIT_ECC, NOT_SUPPORTED, State
from tests.fakes.simulated_gpus import SimulatedBackend

ACTIONS = {RecoveryAction.GPU_RESET: 1, RecoveryAction.NODE_REBOOT: 2, RecoveryAction.DRAIN_AND_RESET: 4}
ROUTE_UNHEALTHY = 1 << 4


class Patient:
    """One GPU of a backend, by its minor, which is its NVML index."""

    def __init__(self, backend: GpuBackend, state: State | None, minor: int = 0) -> None:
        self.backend, self.state, self.minor = backend, state, minor
        self.uuid: GpuUuid = backend.snapshot().gpus[minor].uuid

    def listen(self) -> None:
        """Begin to wait: NVML does not tell what was before."""
        assert self.events(0.01) == ()

    def events(self, timeout_s: float = 20.0) -> tuple[HealthEvent, ...]:
        return self.backend.wait_for_health_events(timeout_s)

    def reading(self) -> HealthReading:
        return next(one for one in self.backend.health_readings() if one.gpu_uuid == self.uuid)

    def xid(self, number: int, gi_id: int | None = None, times: int = 1) -> None:
        if self.state is None:
            self._inject(f"xid={number}*{times}", gi_id)
        elif gi_id is None:
            self.state.xid(self.minor, number, times=times)
        else:
            self.state.xid(self.minor, number, gi_id=gi_id, ci_id=0, times=times)

    def ecc(self) -> None:
        if self.state is None:
            self._inject("ecc")
        else:
            self.state.tell(self.minor, DOUBLE_BIT_ECC)

    def lose(self) -> None:
        if self.state is None:
            self._inject("lost")
        else:
            self.state.lose(self.minor)

    def remap(self, failed: bool) -> None:
        fault = "row-remap=failed" if failed else "row-remap"
        self._fail(fault, rows_failed=int(failed), rows_pending=int(not failed))

    def retire(self) -> None:
        self._fail("retired-pages", pages_pending=1)

    def need(self, action: RecoveryAction) -> None:
        self._fail(f"recovery-action={action}", recovery_action=ACTIONS[action])

    def cut_link(self, link: int) -> None:
        self._fail(f"nvlink={link}", links_down=1 << link)

    def leave_fabric(self) -> None:
        self._fail("fabric", fabric_health=ROUTE_UNHEALTHY)

    def _fail(self, fault: str, **reported: int) -> None:
        """Inject the fault into the simulation, or let the library report these numbers."""
        if self.state is None:
            self._inject(fault)
        else:
            self.state.configure(self.minor, **reported)

    def deafen(self) -> None:
        """The GPU has no events."""
        if self.state is None:
            self.simulated.set_troubles(self.uuid, FailureMode.NO_EVENTS)
        else:
            self.state.inject("nvmlDeviceRegisterEvents", NOT_SUPPORTED, device=self.minor)

    def recover(self) -> None:
        if self.state is None:
            self.simulated.recover(self.uuid)
            return
        self.state.lose(self.minor, False)
        self.state.configure(self.minor, recovery_action=0, links_down=0, fabric_health=0)
        for field in ("rows_pending", "rows_failed", "pages_pending"):
            if getattr(self.reading(), field) is not None:
                self.state.configure(self.minor, **{field: 0})

    @property
    def simulated(self) -> SimulatedBackend:
        assert isinstance(self.backend, SimulatedBackend)
        return self.backend

    def _inject(self, fault: str, gi_id: int | None = None) -> None:
        self.simulated.inject(self.uuid, fault, gi_id=gi_id)

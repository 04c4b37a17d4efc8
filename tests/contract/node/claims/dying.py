"""A node process that ends itself with SIGKILL at a chosen step of preparing and unpreparing partitions and shares.

usage: python -m tests.contract.node.claims.dying FOLDER STEP

Journal, CDI files, simulated GPUs, GPU locks and the MPS client are the real ones; the MPS host is one function. Prints
``prepared N`` and ``unprepared N`` for each claim as it is answered, ``unpreparing N`` before, and ``done`` when the
step is beyond the last one.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from dra_driver.core.errors import DraError
from dra_driver.core.model.claim import AllocatedClaim
from dra_driver.hardware.gpu.backend import GpuNotes
from dra_driver.hardware.mig.manager import MigManager
from dra_driver.hardware.sharing.mps import MpsClient
from dra_driver.node.claims.dependencies import HardwareDependencies
from tests.contract.node.claims.mixed import Node, mps_config
from tests.fakes.claims import FakeSlicer, claim, part, ref, result, share_result
from tests.fakes.sharing import Clock, FakeHost

CLAIMS = (1, 2)
STEPS = frozenset(
    (
        "set_mig_mode",
        "create_gpu_instance",
        "create_compute_instance",
        "destroy_compute_instance",
        "destroy_gpu_instance",
        "set_compute_mode",
        "set_gpu_note",
        "clear_gpu_note",
        "write_claim",
        "remove_claim",
        "ensure",
        "release",
    )
)


class Dying:
    """Passes everything on; the process is killed before or after the chosen one of all steps."""

    left = -1

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name not in STEPS:
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._step()
            answer = found(*args, **kwargs)
            self._step()
            return answer

        return call

    @staticmethod
    def _step() -> None:
        if Dying.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        Dying.left -= 1


class DyingNode(Node):
    """With the real MPS client. The first GPU has partitions, the fifth one is shared under MPS."""

    def hardware(self, journal: GpuNotes) -> HardwareDependencies:
        host = FakeHost(self.folder / "mps").live()
        clock = Clock(host.work)
        control, notes = self.wrap(self.backend), self.wrap(journal)
        return HardwareDependencies(
            mig=MigManager(control, notes),
            slicer=FakeSlicer(self.sharing, notes),  # type: ignore[arg-type]
            mps=self.wrap(MpsClient(self.folder / "mps", control, notes, sleep=clock.sleep, clock=clock)),
            changed=lambda: None,
        )

    def wanted(self) -> tuple[AllocatedClaim, ...]:
        """Two partitions under MPS, and a share."""
        divided, shared = self.gpu_views[0].gpu, self.gpu_views[4].gpu
        profiles = {profile.name: profile for profile in divided.mig_profiles}
        names = part(0, profiles["1g.10gb"], 0), part(0, profiles["3g.40gb"], 4)
        parts = [result(name, request=f"r{at}") for at, name in enumerate(names)]
        one, two = CLAIMS
        return (
            claim(one, *parts, configs=[mps_config("MigDeviceConfig")]),
            claim(two, share_result(two, "10Gi", 10, device=shared.device_name)),
        )

    def work(self) -> None:
        """Prepare all claims, then unprepare all."""
        for each in self.wanted():
            self.api.put(each)
            answer = self.claims.service.prepare([each.ref])[each.ref.uid]
            assert not isinstance(answer, DraError), answer
            say(f"prepared {int(each.ref.uid[:8], 16)}")
        for number in CLAIMS:
            say(f"unpreparing {number}")
            error = self.claims.service.unprepare([ref(number)])[ref(number).uid]
            assert error is None, error
            say(f"unprepared {number}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(folder: Path, step: int) -> None:
    node = DyingNode(folder, 0, wrap=Dying)
    Dying.left = step
    node.work()
    say("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

"""A node process that ends itself with SIGKILL at a chosen step of preparing and unpreparing partitions and shares.

usage: python -m tests.contract.node.claims.dying FOLDER STEP

Journal, CDI files, simulated GPUs, GPU locks and the MPS client are the real ones; the MPS host is one function. Prints
``prepared N`` and ``unprepared N`` for each claim as it is answered, ``unpreparing N`` before, and ``done`` when the
step is beyond the last one.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dra_driver.core.errors import DraError
from dra_driver.core.model.claim import AllocatedClaim
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.hardware.gpu.backend import GpuNotes
from dra_driver.hardware.mig.manager import MigManager
from dra_driver.hardware.sharing.mps import MpsClient
from dra_driver.node.claims.dependencies import HardwareDependencies
from dra_driver.node.claims.workflow.service import open_claims
from dra_driver.node.process.hardware import OwnedBackend
from tests.fakes.claims import (
    NAMES,
    POOL,
    FakeCdiProvider,
    FakeClaims,
    FakeSharing,
    FakeSlicer,
    claim,
    part,
    ref,
    result,
    share_result,
)
from tests.fakes.fuse import Fuse, Fused
from tests.fakes.sharing import Clock, FakeHost
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.unit.node.claims.test_kill_hardware import GPU, mps_config

SPEC = "8xh100-sxm5-80gb"
SHARED = GpuTerms(policy="mps", sharing=SharingTerms(strategy=Strategy.MPS))
CLAIMS = (1, 2)
STEPS = GPU | {"set_gpu_note", "clear_gpu_note", "write_claim", "remove_claim", "ensure", "release"}


class Deadly(Fuse):
    def step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        super().step()


class Node:
    """A node process' claims service over eight simulated GPUs whose state outlives it, with the real MPS client.

    ``wrap`` is applied to the objects that change GPUs, notes and files, ``mps`` the MPS host's directory. The first
    GPU has partitions, the fifth one is shared under MPS.
    """

    def __init__(self, folder: Path, wrap: Callable[[Any], Any] = lambda each: each, mps: str = "mps") -> None:
        self.folder, self.wrap, self.mps = folder, wrap, folder / mps
        self.backend = SimulatedBackend.from_spec(SPEC, "node-a", folder / "gpus.json")
        self.sharing, self.api = FakeSharing(), FakeClaims()
        self.gpus = self.backend.snapshot().gpus
        owned = OwnedBackend(self.backend)
        self.claims = open_claims(
            folder / "plugin",
            pool=POOL,
            names=NAMES,
            reader=self.api,
            writer=wrap(CdiWriter(str(folder / "cdi"), NAMES)),
            provider=FakeCdiProvider(),
            snapshot=owned.snapshot,
            hardware=self.hardware,
            terms=lambda: {gpu.uuid: SHARED for gpu in self.gpus[4:5]},
            boot_id="boot",
        )
        owned.use_journal(self.claims.journal)
        recovery = self.claims.service.recover()
        assert not recovery.problems, recovery.problems

    def hardware(self, journal: GpuNotes) -> HardwareDependencies:
        host = FakeHost(self.mps).live()
        clock = Clock(host.work)
        control, notes = self.wrap(self.backend), self.wrap(journal)
        return HardwareDependencies(
            mig=MigManager(control, notes),
            slicer=FakeSlicer(self.sharing, notes),  # type: ignore[arg-type]
            mps=self.wrap(MpsClient(self.mps, control, notes, sleep=clock.sleep, clock=clock)),
            changed=lambda: None,
        )

    def wanted(self) -> tuple[AllocatedClaim, ...]:
        divided, shared = self.gpus[0], self.gpus[4]
        profiles = {profile.name: profile for profile in divided.mig_profiles}
        names = part(0, profiles["1g.10gb"], 0), part(0, profiles["3g.40gb"], 4)
        parts = [result(name, request=f"r{at}") for at, name in enumerate(names)]
        one, two = CLAIMS
        return (
            claim(one, *parts, configs=[mps_config("MigDeviceConfig")]),
            claim(two, share_result(two, "10Gi", 10, device=shared.device_name)),
        )

    def work(self) -> None:
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

    def finish(self) -> None:
        journal = self.claims.journal
        files = CdiWriter(str(self.folder / "cdi"), NAMES).claim_uids()
        assert not any((journal.uids(), journal.uses(), journal.noted_gpus(), files))
        assert self.sharing.idle
        for gpu in self.backend.snapshot().gpus:
            assert (gpu.mig_instances, gpu.mig_enabled, self.backend.compute_mode(gpu.uuid)) == ((), False, 0)
        self.claims.close()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(folder: Path, step: int) -> None:
    fuse = Deadly()
    node = Node(folder, wrap=lambda each: Fused(each, fuse, STEPS))
    fuse.left = step
    node.work()
    say("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

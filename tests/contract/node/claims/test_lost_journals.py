"""Random histories of a node that sometimes loses its journal, API server, nvidia-smi or process.

What was answered to the kubelet holds until the claim ends, whatever was lost; and when all claims have ended nothing
is left. Waiting takes no time here, so many histories fit into a second.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dra_driver.core.errors import (
    ApiUnreachableError,
    CommandError,
    DraError,
    DriverUnavailableError,
    GpuBusyError,
    MpsUnavailableError,
)
from dra_driver.core.model.claim import AllocatedClaim, AllocatedDevice
from dra_driver.core.model.mig import parse_partition_name
from dra_driver.core.model.terms import GpuTerms, Interval, SharingTerms, Strategy
from dra_driver.hardware.gpu.backend import ComputeMode
from tests.fakes.claims import CONTROL_PROGRAM, claim, result, share_result
from tests.fakes.fuse import Fuse, Fused, Killed
from tests.fakes.node_process import memory_folder
from tests.unit.node.claims.conftest import ClaimsNode, Run, simulated
from tests.unit.node.claims.test_kill_hardware import STEPS, mps_config, slice_config

HISTORIES, MORE_HISTORIES = 15, 40
MOVES = 60
BY_MPS, IN_TURNS = 2, 3
FAULTY = ("create_gpu_instance", "set_mig_mode", "destroy_gpu_instance", "mig_instances", "set_compute_mode")


class History:
    """Four H100: two for whole GPUs and partitions, one shared by MPS, one by time slicing."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - a history, not a secret
        self.fuse = Fuse()
        self.backend = simulated("4xh100-sxm5-80gb")
        self.claims_node = ClaimsNode(folder, backend=self.backend, wrap=lambda each: Fused(each, self.fuse, STEPS))
        slices = SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.LONG)
        by_mps = SharingTerms(strategy=Strategy.MPS)
        self.gpus = [gpu.uuid for gpu in self.claims_node.gpus]
        self.claims_node.terms = {
            self.gpus[BY_MPS]: GpuTerms(sharing=by_mps),
            self.gpus[IN_TURNS]: GpuTerms(sharing=slices),
        }
        self.runs = self.claims = 0
        self.there: dict[str, AllocatedClaim] = {}
        """Claims in the API server."""
        self.answered: dict[str, bytes] = {}
        """CDI files of claims that were answered as prepared."""
        self.run = self.start()

    def start(self) -> Run:
        while True:
            self.runs += 1
            found = self.killed_or(lambda: self.claims_node.run(f"run-{self.runs}"))
            if isinstance(found, Run):
                self.run = found
                return found

    def killed_or(self, call: Callable[[], Any]) -> Any:
        """What ``call`` returns; `Killed` when the process died in it."""
        self.fuse.left = self.dice.randrange(25) if self.dice.random() < 0.15 else None
        try:
            return call()
        except Killed:
            return Killed
        finally:
            self.fuse.left = None

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], object]]] = [
            (40, self.prepare),
            (25, self.unprepare),
            (12, self.again),
            (6, lambda: self.of_the_process(self.run.service.maintain)),
            (4, lambda: self.of_the_process(self.run.service.reclaim_orphans)),
            (4, self.rebuild),
            (6, self.lose),
            (5, self.outage),
            (3, self.hardware_fails),
            (2, self.sharing_fails),
        ]
        weights, calls = zip(*steps, strict=True)
        self.dice.choices(calls, weights)[0]()

    def of_the_process(self, call: Callable[[], object]) -> Any:
        found = self.killed_or(call)
        if found is Killed:
            self.start()
        return found

    def prepare(self) -> None:
        self.claims += 1
        wanted = self.wanted(self.claims)
        if not self.fits(wanted):
            return
        uid = wanted.ref.uid
        self.there[uid] = self.claims_node.api.put(wanted)
        answer = self.of_the_process(lambda: self.run.service.prepare([wanted.ref]))
        if answer is not Killed and not isinstance(answer[uid], DraError):
            self.answered[uid] = self.claims_node.writer.files[uid]

    def unprepare(self) -> None:
        if self.there:
            wanted = self.there[self.dice.choice(sorted(self.there))]
            self.answered.pop(wanted.ref.uid, None)
            answer = self.of_the_process(lambda: self.run.service.unprepare([wanted.ref]))
            if answer is not Killed and answer[wanted.ref.uid] is None:
                self.over(wanted)

    def over(self, wanted: AllocatedClaim) -> None:
        del self.there[wanted.ref.uid]
        self.claims_node.api.remove(wanted.ref)

    def again(self) -> None:
        if self.answered:
            wanted = self.there[self.dice.choice(sorted(self.answered))]
            self.of_the_process(lambda: self.run.service.prepare([wanted.ref]))

    def rebuild(self) -> None:
        self.claims_node.clock.wait(700)
        self.of_the_process(self.run.service.finish_rebuild)

    def lose(self) -> None:
        self.claims_node.lose_journal()
        self.claims_node.api.outage = ApiUnreachableError("connection refused") if self.dice.random() < 0.8 else None
        self.start()
        if self.dice.random() < 0.5:
            self.claims_node.api.outage = None

    def outage(self) -> None:
        self.claims_node.api.outage = None if self.claims_node.api.outage else ApiUnreachableError("connection refused")

    def hardware_fails(self) -> None:
        error = self.dice.choice([GpuBusyError("in use"), DriverUnavailableError("being replaced")])
        self.backend.fail_next(self.dice.choice(FAULTY), error, skip=self.dice.randrange(2))

    def sharing_fails(self) -> None:
        errors: list[DraError] = [CommandError("nvidia-smi is missing"), MpsUnavailableError("no host")]
        self.claims_node.sharing.failure = None if self.claims_node.sharing.failure else self.dice.choice(errors)

    def wanted(self, number: int) -> AllocatedClaim:
        gib, percent = self.dice.randint(1, 30), self.dice.randint(1, 50)
        whole, other = f"gpu-{self.dice.randrange(2)}", result("gpu-1", request="b")
        forms = [
            claim(number, result(whole)),
            claim(number, result(whole), configs=[slice_config()]),
            claim(number, result("gpu-0"), other, configs=[mps_config("GpuConfig")]),
            claim(number, self.part("a")),
            claim(number, self.part("a"), self.part("b")),
            claim(number, self.part("a"), configs=[mps_config("MigDeviceConfig")]),
            *(
                claim(number, share_result(number, f"{gib}Gi", percent, device=f"gpu-{minor}"))
                for minor in (BY_MPS, IN_TURNS)
            ),
        ]
        return self.dice.choice(forms)

    def part(self, request: str) -> AllocatedDevice:
        name, minor = self.dice.choice(["1g.10gb", "2g.20gb", "3g.40gb"]), self.dice.randrange(2)
        start = self.dice.choice(self.claims_node.profile(name, minor).starts)
        return result(self.claims_node.part(name, start, minor), request=request)

    def fits(self, wanted: AllocatedClaim) -> bool:
        taken = [span for other in self.there.values() for span in self.spans(other)]
        for minor, begin, end, share in self.spans(wanted):
            if any(m == minor and begin < e and b < end and not (share and s) for m, b, e, s in taken):
                return False
            taken.append((minor, begin, end, share))
        return True

    def spans(self, wanted: AllocatedClaim) -> list[tuple[int, int, int, str | None]]:
        """GPU, first and next memory slice, share, of each of its devices."""
        found = []
        for each in wanted.results:
            part = parse_partition_name(each.device)
            if part is None:
                found.append((int(each.device.removeprefix("gpu-")), 0, 8, each.share_id))
                continue
            profile = self.claims_node.gpus[part.minor].profile(part.profile_id)
            assert profile is not None
            found.append((part.minor, part.start, part.start + profile.memory_slices, None))
        return found

    def check(self) -> None:
        """Assert that answered claims have their partitions, daemons with their GPUs' modes, and time slices."""
        uuids = {
            one.device.uuid for gpu in self.claims_node.gpus for one in gpu.mig_instances if one.device is not None
        }
        for uid, file in self.answered.items():
            for device in json.loads(file)["devices"]:
                edits = device["containerEdits"]
                assert {env.split("=")[1] for env in edits["env"] if "_MIG_" in env} <= uuids
                of_daemons = (one for one in edits.get("mounts", []) if one["containerPath"] != CONTROL_PROGRAM)
                for mount in (one for one in of_daemons if not one["hostPath"].startswith("/metadata/")):
                    daemon = self.claims_node.sharing.running[mount["hostPath"].split("/")[2]]
                    modes = {self.backend.compute_mode(gpu) for gpu in daemon.gpus}
                    assert modes <= {ComputeMode.EXCLUSIVE_PROCESS}
            for each in self.there[uid].results:
                if each.device == f"gpu-{IN_TURNS}" or "timeSlicingConfig" in str(self.there[uid].configs):
                    assert self.claims_node.sharing.slices[self.gpus[int(each.device[-1])]] is Interval.LONG

    def end(self) -> None:
        self.claims_node.api.outage = self.claims_node.sharing.failure = None
        self.backend.clear_faults()
        self.start()
        assert not self.run.journal.rebuild_pending
        assert self.answered.keys() <= self.run.journal.uids()
        self.check()
        for wanted in [*self.there.values()]:
            assert self.run.service.unprepare([wanted.ref]) == {wanted.ref.uid: None}
            self.over(wanted)
        self.run.service.maintain()
        assert self.claims_node.is_whole_again()
        assert (self.run.journal.uses(), self.claims_node.writer.files) == ((), {})
        assert not list((self.claims_node.folder / "made").glob("*"))


@pytest.mark.parametrize(
    "seed", [*range(HISTORIES), *(pytest.param(n, marks=pytest.mark.slow) for n in range(HISTORIES, MORE_HISTORIES))]
)
def test_answered_claims_stay_prepared_and_nothing_is_left(seed: int) -> None:
    with TemporaryDirectory(dir=memory_folder()) as folder:
        history = History(Path(folder), seed)
        try:
            for _ in range(MOVES):
                history.step()
                history.check()
            history.end()
        finally:
            for journal in history.claims_node.opened:
                journal.close()

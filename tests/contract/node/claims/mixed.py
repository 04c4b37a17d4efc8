"""Random rounds of prepare and unprepare over every form that a GPU can take, on simulated GPUs.

For tests and for a longer run by hand: ``python -m tests.contract.node.claims.mixed ROUNDS [SEED]``. A scheduler of few
lines stands in for the real one: it allocates what its own view says is free, so every claim has to be prepared, apart
from partitions for which the hardware lacks an engine.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.config.parameters import API_VERSION
from dra_driver.core.errors import DraError, NoRoomError
from dra_driver.core.model.claim import AllocatedDevice, OpaqueConfig
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MigProfile
from dra_driver.core.model.terms import Form, GpuTerms, Interval, SharingTerms, Strategy, Terms
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.hardware.gpu.backend import GpuNotes
from dra_driver.hardware.mig.manager import MigManager
from dra_driver.node.claims.assembly import Claims, open_claims
from dra_driver.node.claims.dependencies import HardwareDependencies
from dra_driver.node.process.hardware import OwnedBackend
from tests.fakes.claims import (
    NAMES,
    POOL,
    FakeCdiProvider,
    FakeClaims,
    FakeMps,
    FakeSharing,
    FakeSlicer,
    claim,
    part,
    ref,
    result,
    share_result,
)
from tests.fakes.memory import memory_folder
from tests.fakes.simulated_gpus import SimulatedBackend

SPEC = "8xh100-sxm5-80gb"
MOST_CLAIMS = 40
RESTART_EVERY = 25


@dataclass
class Tally:
    """Results: claims prepared by form, refusals because an engine was missing, seconds."""

    prepared: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    seconds: float = 0.0


@dataclass
class GpuView:
    """The scheduler's view of one GPU: allocated as a whole, in partitions, or in shares."""

    gpu: Gpu
    whole: int | None = None
    parts: dict[int, tuple[MigProfile, int]] = field(default_factory=dict)
    shares: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def free(self) -> bool:
        return self.whole is None and not self.parts and not self.shares

    def fits(self, profile: MigProfile, start: int) -> bool:
        def apart(other: MigProfile, at: int) -> bool:
            return start + profile.memory_slices <= at or at + other.memory_slices <= start

        return self.whole is None and not self.shares and all(apart(*each) for each in self.parts.values())

    def forget(self, number: int) -> None:
        self.whole = None if self.whole == number else self.whole
        self.parts.pop(number, None)
        self.shares.pop(number, None)


class Node:
    """A node process' claims service over simulated GPUs whose state outlives it; ``restart`` opens it anew."""

    def __init__(
        self, folder: Path, seed: int, spec: str = SPEC, wrap: Callable[[Any], Any] = lambda each: each
    ) -> None:
        """``wrap`` is applied to the objects that change GPUs, notes and files."""
        self.folder = folder
        self.wrap = wrap
        self.dice = random.Random(seed)  # noqa: S311 - a test's dice
        self.backend = SimulatedBackend.from_spec(spec, "node-a", folder / "gpus.json")
        self.sharing = FakeSharing()
        self.api = FakeClaims()
        self.gpu_views = [GpuView(gpu) for gpu in self.backend.snapshot().gpus]
        self.terms: Terms = {view.gpu.uuid: terms for view, terms in zip(self.gpu_views, _terms(), strict=False)}
        self.living: dict[int, GpuView] = {}
        self.tally = Tally()
        self.numbers = iter(range(1, 1 << 30))
        self.claims = self._open()

    def _open(self) -> Claims:
        owned = OwnedBackend(self.backend)

        claims = open_claims(
            self.folder / "plugin",
            pool=POOL,
            names=NAMES,
            reader=self.api,
            writer=self.wrap(CdiWriter(str(self.folder / "cdi"), NAMES)),
            provider=FakeCdiProvider(),
            snapshot=owned.snapshot,
            hardware=self.hardware,
            terms=lambda: self.terms,
            boot_id="boot",
        )
        owned.use_journal(claims.journal)
        recovery = claims.service.recover()
        assert not recovery.problems, recovery.problems
        return claims

    def hardware(self, journal: GpuNotes) -> HardwareDependencies:
        """Partitions are created on simulated GPUs; the settings of sharing are faked."""
        control, notes = self.wrap(self.backend), self.wrap(journal)
        return HardwareDependencies(
            mig=MigManager(control, notes),
            slicer=FakeSlicer(self.sharing, notes),  # type: ignore[arg-type]
            mps=FakeMps(self.sharing, control, notes),  # type: ignore[arg-type]
            changed=lambda: None,
        )

    def restart(self) -> None:
        self.claims.close()
        self.claims = self._open()

    def round(self) -> None:
        """Prepare or unprepare one random claim."""
        if self.living and (len(self.living) >= MOST_CLAIMS or self.dice.random() < 0.45):
            self.end(self.dice.choice(sorted(self.living)))
        else:
            self.begin()

    def begin(self) -> None:
        number, view = next(self.numbers), self.dice.choice(self.gpu_views)
        forms = [self._whole, self._partition, self._partition, self._share]
        wanted = self.dice.choice(forms)(number, view)
        if wanted is None:
            return
        form, results, configs = wanted
        self.api.put(claim(number, *results, configs=configs))
        answer = self.claims.service.prepare([ref(number)])[ref(number).uid]
        if isinstance(answer, NoRoomError):
            assert form == "partition", answer
            assert self.claims.journal.entry(ref(number).uid) is None
            view.forget(number)
            self.tally.refused += 1
            return
        assert not isinstance(answer, DraError), answer
        assert len(answer) == len(results)
        self.living[number] = view
        self.tally.prepared[form] += 1

    def end(self, number: int) -> None:
        answer = self.claims.service.unprepare([ref(number)])[ref(number).uid]
        assert answer is None, answer
        self.living.pop(number).forget(number)
        self.api.remove(ref(number))

    def check(self) -> None:
        """Assert that hardware, settings, journal and files agree with the scheduler's view."""
        for view, gpu in zip(self.gpu_views, self.backend.snapshot().gpus, strict=True):
            there = sorted((one.profile_id, one.start) for one in gpu.mig_instances)
            assert there == sorted((profile.profile_id, start) for profile, start in view.parts.values())
            assert gpu.mig_enabled == bool(view.parts)
            assert (gpu.uuid in self.sharing.running) == bool(
                view.shares and self.terms[gpu.uuid].sharing.strategy is Strategy.MPS  # type: ignore[union-attr]
            )
        uids = {ref(number).uid for number in self.living}
        assert self.claims.journal.uids() == uids
        assert CdiWriter(str(self.folder / "cdi"), NAMES).claim_uids() == uids
        assert self.claims.journal.orphaned_partitions() == ()

    def finish(self) -> None:
        """Unprepare all claims and assert that nothing is left."""
        for number in sorted(self.living):
            self.end(number)
        self.check()
        assert self.sharing.idle
        assert self.claims.journal.noted_gpus() == {}
        assert self.claims.journal.uses() == ()
        assert sum(len(gpu.mig_instances) for gpu in self.backend.snapshot().gpus) == 0
        assert all(self.backend.compute_mode(view.gpu.uuid) == 0 for view in self.gpu_views)
        self.claims.close()

    def _whole(self, number: int, view: GpuView) -> Any:
        if not view.free:
            return None
        view.whole = number
        configs = self.dice.choice(([], [], [mps_config("GpuConfig")], [_config("GpuConfig", "TimeSlicing", "Long")]))
        alone = self._terms_of(view).sharing is not None
        name = view.gpu.device_name
        whole = share_result(number, _everything(view.gpu), 100, device=name) if alone else result(name)
        return f"{Form.WHOLE}{' with a setting' if configs else ''}", [whole], configs

    def _partition(self, number: int, view: GpuView) -> Any:
        places = [(p, s) for p in view.gpu.mig_profiles for s in p.starts if view.fits(p, s)]
        if not places:
            return None
        profile, start = view.parts[number] = self.dice.choice(places)
        configs = [mps_config("MigDeviceConfig")] if self.dice.random() < 0.2 else []
        return str(Form.PARTITION), [result(part(view.gpu.minor, profile, start))], configs

    def _share(self, number: int, view: GpuView) -> Any:
        if self._terms_of(view).sharing is None or view.whole is not None or view.parts:
            return None
        gib, percent = self.dice.randint(1, 20), self.dice.randint(1, 30)
        if (
            sum(g for g, _ in view.shares.values()) + gib > 79
            or sum(p for _, p in view.shares.values()) + percent > 100
        ):
            return None
        view.shares[number] = gib, percent
        device: AllocatedDevice = share_result(number, f"{gib}Gi", percent, device=view.gpu.device_name)
        return str(Form.SHARE), [device], []

    def _terms_of(self, view: GpuView) -> GpuTerms:
        return self.terms.get(view.gpu.uuid, GpuTerms())


def mixed(folder: Path, rounds: int, seed: int, spec: str = SPEC) -> Tally:
    """Run ``rounds`` rounds with some restarts, then end all claims. Raises AssertionError for a mismatch."""
    begin = time.perf_counter()
    node = Node(folder, seed, spec)
    for number in range(1, rounds + 1):
        node.round()
        if number % RESTART_EVERY == 0:
            node.check()
            node.restart()
    node.check()
    node.finish()
    node.tally.seconds = time.perf_counter() - begin
    return node.tally


def _terms() -> list[GpuTerms]:
    """Four exclusive GPUs, two under MPS, two time-sliced."""
    mps = GpuTerms(policy="mps", sharing=SharingTerms(strategy=Strategy.MPS))
    sliced = GpuTerms(policy="ts", sharing=SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.SHORT))
    return [GpuTerms()] * 4 + [mps] * 2 + [sliced] * 2


def _everything(gpu: Gpu) -> str:
    return str(gpu.memory_bytes or 0)


def mps_config(kind: str) -> OpaqueConfig:
    """A claim's config that asks for MPS without limits."""
    return _config(kind, "MPS")


def _config(kind: str, strategy: str, interval: str = "") -> OpaqueConfig:
    sharing: dict[str, Any] = {"strategy": strategy}
    if interval:
        sharing["timeSlicingConfig"] = {"interval": interval}
    return OpaqueConfig(
        source="FromClaim", requests=(), parameters={"apiVersion": API_VERSION, "kind": kind, "sharing": sharing}
    )


def main() -> None:
    rounds, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        sys.stdout.write(f"{mixed(Path(folder), rounds, seed)}\n")


if __name__ == "__main__":
    main()

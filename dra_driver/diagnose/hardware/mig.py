"""Change MIG mode and instances of one GPU while a second NVML client runs, and restore them (checks 12 to 14).

Needs the consent of the GPU's owner. Each reader records the former state (topic ``before``), restores it in its
``finally`` and records the result (``after``); else `restore` does so in a new process. The GPU's lock excludes the
node process. The judges do no I/O.
"""

import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import GpuBusyError, HardwareError
from dra_driver.core.finding import Finding
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigProfile
from dra_driver.diagnose.hardware.child import ChosenGpu, Task
from dra_driver.diagnose.hardware.client import ClientProcess
from dra_driver.diagnose.hardware.values import BY_OWNER, IN_USE, Facts, Topics, hardware_check, judgement
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.node.claims import GpuLocks

LOCK_S: Final = 10.0
RESTORE_S: Final = 15.0
FABRIC_S: Final = 30.0
COMPLETED: Final = 3
"""Fabric state NVML_GPU_FABRIC_STATE_COMPLETED of nvml.h."""
_STEP_S: Final = 0.1


class _Bench(Struct, frozen=True, kw_only=True):
    """The GPU under test, and its smallest profile."""

    task: Task
    chosen: ChosenGpu
    backend: NvmlBackend
    profile: MigProfile

    @property
    def uuid(self) -> GpuUuid:
        return GpuUuid(self.chosen.uuid)

    def create(self) -> Facts:
        """Create an instance of the smallest profile at its first placement; ``gi`` is its id."""
        profile = self.profile
        return attempt(lambda: self.backend.create_gpu_instance(self.uuid, profile.profile_id, profile.starts[0]), "gi")

    def destroy(self, gi_id: int) -> Facts:
        """Destroy an instance without compute instances."""
        return attempt(lambda: self.backend.destroy_gpu_instance(self.uuid, gi_id))

    def second_client(self) -> ClientProcess:
        return ClientProcess(self.task.library, [self.profile.profile_id])


def restore(task: Task) -> Topics:
    """Return the GPU to the state ``before`` of the task's facts; topic ``after``."""
    backend = NvmlBackend(task.library)
    backend.open()
    _restore(backend, GpuUuid(task.chosen.uuid), task.facts["before"])
    yield "after", _state(backend, GpuUuid(task.chosen.uuid))
    backend.close()


def attempt(change: Callable[[], object], key: str = "value") -> Facts:
    """``{key: result, "ms": ...}``, or ``error`` (class), ``code`` (NVML's) and ``text`` of a failure."""
    begin = time.perf_counter()
    try:
        found: dict[str, object] = {key: change()}
    except HardwareError as error:
        code = getattr(error.__cause__, "value", None)
        found = {"error": type(error).__name__, "code": code, "text": str(error)}
    return found | {"ms": round((time.perf_counter() - begin) * 1000, 1)}


def _on_changed_gpu(work: Callable[[_Bench], Topics]) -> Callable[[Task], Topics]:
    """Make a reader of ``work``, which changes the GPU."""

    @wraps(work)
    def read(task: Task) -> Topics:
        uuid = GpuUuid(task.chosen.uuid)
        # Without a node process on this machine, no lock is shared, and no directory must be left.
        folder = Path(task.plugin_dir if Path(task.plugin_dir or "-").is_dir() else task.folder, "locks")
        with GpuLocks(folder).acquire([uuid], LOCK_S) as locked:
            if not locked:
                yield "skipped", f"the node process has been changing GPU {uuid} for {LOCK_S:.0f} s"
                return
            backend = NvmlBackend(task.library)
            backend.open()
            gpu = backend.snapshot().gpu_by_uuid(uuid)
            profile = min(gpu.mig_profiles, key=lambda one: (one.memory_slices, one.profile_id)) if gpu else None
            before = _state(backend, uuid) if profile else {}
            reason = _unfit(gpu is not None and gpu.mig_resetless, profile, before)
            if profile is None or reason:
                yield "skipped", reason
                return
            yield "before", before
            try:
                yield from work(_Bench(task=task, chosen=task.chosen, backend=backend, profile=profile))
            finally:
                _restore(backend, uuid, before)
            yield "after", _state(backend, uuid)
            backend.close()

    return read


def _unfit(resetless: bool | None, profile: MigProfile | None, before: Facts) -> str:
    if profile is None:
        return "the GPU has no MIG profile that can be created"
    if before["instances"]:
        return "the GPU has MIG instances; destroy them first"
    if not before["mode"] and not resetless:
        return "MIG mode is off, and enabling it needs a reset of the GPU: enable it first"
    return ""


@_on_changed_gpu
def read_first_create(bench: _Bench) -> Topics:
    """Check 12: MIG mode and the first instance, with a second client and without it."""
    with bench.second_client() as client:
        yield "client", client.started
        yield "mode beside client", attempt(lambda: bench.backend.set_mig_mode(bench.uuid, True))
    yield "mode alone", attempt(lambda: bench.backend.set_mig_mode(bench.uuid, True))
    with bench.second_client():
        beside = bench.create()
        yield "create beside client", beside
        if "gi" in beside:
            yield "destroy beside client", bench.destroy(beside["gi"])
    alone = bench.create()
    yield "create alone", alone
    if "gi" in alone:
        yield "destroy alone", bench.destroy(alone["gi"])


@_on_changed_gpu
def read_subscriptions(bench: _Bench) -> Topics:
    """Check 13: destroy an instance that a second process has listed, before and after that process ends."""
    yield "mode", attempt(lambda: bench.backend.set_mig_mode(bench.uuid, True))
    made = bench.create()
    yield "create", made
    if "gi" not in made:
        return
    with bench.second_client() as client:
        yield "listed", client.list_instances(bench.chosen.index)
        yield "destroy beside client", bench.destroy(made["gi"])
    yield "destroy alone", bench.destroy(made["gi"])


@_on_changed_gpu
def read_fabric(bench: _Bench) -> Topics:
    """Check 14: the fabric's state after the last instance is destroyed and MIG mode is off."""
    state = probes.fabric_state(probes.handle_at(bench.chosen.index))
    if not state.get("value"):
        yield "skipped", f"the GPU has no fabric (answer {state.get('value', state.get('code'))})"
        return
    yield "fabric before", state
    yield "mode", attempt(lambda: bench.backend.set_mig_mode(bench.uuid, True))
    made = bench.create()
    yield "create", made
    if "gi" in made:
        yield "destroy", bench.destroy(made["gi"])
    yield "mode off", attempt(lambda: bench.backend.set_mig_mode(bench.uuid, False))
    begin = time.monotonic()
    timeline: list[list[object]] = []
    while (waited_s := time.monotonic() - begin) < FABRIC_S:
        now = probes.fabric_state(probes.handle_at(bench.chosen.index))
        seen = now.get("value", f"code {now.get('code')}")
        if not timeline or timeline[-1][1] != seen:
            timeline.append([round(waited_s, 2), seen])
        if seen == COMPLETED:
            break
        time.sleep(_STEP_S)
    yield "fabric after", timeline


def _state(backend: NvmlBackend, uuid: GpuUuid) -> dict[str, object]:
    return {"mode": backend.mig_mode(uuid), "instances": [one.gi_id for one in backend.mig_instances(uuid)]}


def _restore(backend: NvmlBackend, uuid: GpuUuid, before: Facts) -> None:
    """Destroy instances that did not exist before, and set the mode; retry while a client holds the GPU."""
    deadline = time.monotonic() + RESTORE_S
    while True:
        try:
            for instance in backend.mig_instances(uuid):
                if instance.gi_id in before["instances"]:
                    continue
                for compute in instance.compute:
                    backend.destroy_compute_instance(uuid, instance.gi_id, compute.ci_id)
                backend.destroy_gpu_instance(uuid, instance.gi_id)
            backend.set_mig_mode(uuid, before["mode"])
        except GpuBusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_STEP_S * 5)
        else:
            return


_NOT_RESTORED: Final = "the GPU is not restored: restore it manually with nvidia-smi -mig and nvidia-smi mig"


@hardware_check(12, "first MIG instance beside a client", read_first_create, 60.0, BY_OWNER)
def first_create(facts: Facts, _survey: Facts) -> Finding:
    """Creating works, or fails with IN_USE while another client holds the GPU."""
    differences = []
    for step in ("mode beside client", "create beside client"):
        answer = facts[step]
        if "error" in answer and answer.get("code") != IN_USE:
            differences.append(f"{step}: {_outcome(answer)}, expected success or code {IN_USE}")
    for step in ("mode alone", "create alone"):
        if "error" in facts[step]:
            differences.append(f"{step}: {_outcome(facts[step])}, expected success")
    seen = ", ".join(f"{step}: {_outcome(facts[step])}" for step in ("mode beside client", "create beside client"))
    return _judged(
        facts,
        differences,
        seen,
        right="IN_USE is retried while the call has time, and the error names the process that holds the GPU",
        wrong="a partition would fail without a retry",
    )


@hardware_check(13, "instance that another process listed", read_subscriptions, 60.0, BY_OWNER)
def subscriptions(facts: Facts, _survey: Facts) -> Finding:
    """Destroying works, at the latest after the second process ends."""
    differences = []
    for step in ("mode", "create"):
        if "error" in facts[step]:
            differences.append(f"{step}: {_outcome(facts[step])}")
    beside, alone = facts.get("destroy beside client", {}), facts.get("destroy alone", {})
    if "error" in beside and beside.get("code") != IN_USE:
        differences.append(f"destroy beside client: {_outcome(beside)}, expected success or code {IN_USE}")
    if "error" in alone:
        differences.append(f"destroy alone: {_outcome(alone)}, expected success")
    return _judged(
        facts,
        differences,
        f"destroying an instance listed by a second process: {_outcome(beside)}; after its end: {_outcome(alone)}",
        right="two node processes during an update block each other only while one of them lists",
        wrong="unpreparing a claim would fail instead of being retried",
    )


@hardware_check(14, "fabric after MIG", read_fabric, 75.0, BY_OWNER)
def fabric(facts: Facts, _survey: Facts) -> Finding:
    """The fabric is complete again within 30 s after the last instance."""
    timeline = facts["fabric after"]
    differences = []
    if not timeline or timeline[-1][1] != COMPLETED:
        differences.append(f"the fabric's state after MIG was {timeline}, expected {COMPLETED} (completed)")
    return _judged(
        facts,
        differences,
        f"fabric states (seconds, state) after the last instance: {timeline}",
        right="after partitions, a whole GPU waits this long for the fabric",
        wrong="CUDA would fail with code 802 on a whole GPU after MIG",
    )


def _judged(facts: Facts, differences: Sequence[str], seen: str, *, right: str, wrong: str) -> Finding:
    """A GPU that was not restored takes precedence over any other difference."""
    before, after = facts.get("before"), facts.get("after")
    if before != after:
        differences, wrong = [f"before {before}, afterwards {after or 'unknown'}", *differences], _NOT_RESTORED
    return judgement(differences, seen, right=right, wrong=wrong)


def _outcome(answer: Facts) -> str:
    if "error" in answer:
        return f"{answer['error']} (code {answer.get('code')})"
    return f"ok in {answer['ms']:.0f} ms" if answer else "not tried"

"""Find contradictions between journal, files, daemons, sockets and hardware of a node. No I/O."""

from collections.abc import Iterator
from typing import Final

from dra_driver.core.finding import Finding, Status, finding
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.terms import Strategy
from dra_driver.core.text import listed
from dra_driver.diagnose.node_state.state import NodeState
from dra_driver.hardware.gpu.backend import MIG_MODE
from dra_driver.node.claims.inspection import AssignedDevice, State

_SOON: Final = "a node process repairs it within seconds; without one, --repair does"
_LATER: Final = "a node process repairs it within ten minutes or at its start; without one, --repair does"


def _about(reason: str, about: object, seen: str, advice: str, *, is_problem: bool = True) -> Finding:
    """A contradiction: a warning, or a note with status ok."""
    status = Status.WARN if is_problem else Status.OK
    return finding(status, seen, "journal, files, daemons and hardware agree", advice, str(about), reason=reason)


def find_disagreements(state: NodeState) -> tuple[Finding, ...]:
    """Return all contradictions, in the order journal, claims, CDI, GPUs, MPS, processes, health."""
    if not state.exists:
        seen = "the directory does not exist: no node process has run on this node, or the directory was removed"
        return (_about("NoDirectory", state.plugin, seen, "nothing", is_problem=False),)
    return (
        *_journal(state),
        *_claims(state),
        *_cdi(state),
        *_gpu_changes(state),
        *_hardware(state),
        *_mps(state),
        *_processes(state),
        *_health(state),
    )


def _journal(state: NodeState) -> Iterator[Finding]:
    journal, about = state.journal, str(state.journal.path)
    if journal.problem is not None:
        advice = (
            "the next start of the node process keeps a copy of the damaged file and rebuilds the journal from CDI "
            "files, GPU state backups and the API server; running pods keep running, and all pods can be deleted"
        )
        yield _about("JournalUnreadable", about, journal.problem, advice)
    elif journal.content is None:
        advice = "the next start of the node process creates the journal and collects the claims again"
        yield _about("NoJournal", about, "the journal does not exist", advice, is_problem=bool(state.cdi.claims))
    elif journal.content.rebuild_pending:
        seen = "the journal is new, and may lack claims that were prepared before"
        nameless = state.cdi.claims - state.named - {entry.ref.uid for entry in journal.content.entries}
        advice = "the node process reads them from the API server, every 30 s until it answers"
        if nameless:
            names = listed(sorted(nameless))
            advice += f"; it cannot query {names}, whose names are not recorded: they end with their pods"
        yield _about("JournalNew", about, seen, advice)
    for path in journal.set_aside:
        seen, advice = "a damaged journal was kept", "remove it when no diagnosis needs it"
        yield _about("DamagedJournalKept", path, seen, advice, is_problem=False)


def _claims(state: NodeState) -> Iterator[Finding]:
    for entry in state.entries:
        about = f"claim {entry.ref}"
        if state.is_of_earlier_boot(entry):
            seen = "it was prepared in an earlier boot, so no container of it runs"
            yield _about("EarlierBoot", about, seen, _LATER)
        elif entry.state is not State.PREPARED and entry.attempt.owner not in state.runs:
            seen = f"it is {entry.state}, and the process that prepared or unprepared it has ended"
            yield _about("ProcessEnded", about, seen, _LATER)
        elif entry.state is State.PREPARED and entry.ref.uid not in state.cdi.claims:
            seen = "it is prepared, but has no CDI file: a container of it that restarts does not start"
            yield _about("NoCdiFile", about, seen, _SOON)
        if entry.ref.uid not in state.named:
            seen = "its name is recorded only in the journal: the claim is lost if the journal is lost"
            yield _about("NameNotSaved", about, seen, _LATER, is_problem=False)


def _cdi(state: NodeState) -> Iterator[Finding]:
    for problem in state.cdi.problems:
        yield _about("CdiFileUnusable", state.cdi.folder, problem, _SOON)
    content = state.journal.content
    if content is not None and not content.rebuild_pending:
        for uid in sorted(state.cdi.claims - {entry.ref.uid for entry in content.entries}):
            seen = "it has a CDI file, but no entry in the journal"
            yield _about("NoJournalEntry", f"claim with uid {uid}", seen, _LATER)
    if state.entries and not state.cdi.base:
        seen = "the base document is missing: no container with a GPU can start"
        yield _about("NoBaseDocument", state.cdi.folder, seen, _SOON)


def _gpu_changes(state: NodeState) -> Iterator[Finding]:
    content = state.journal.content
    if content is None:
        return
    in_use = {device.gpu_uuid for entry in content.entries for device in entry.devices}
    for note in content.notes:
        if note.gpu not in in_use and not content.rebuild_pending:
            seen = f"its {note.key} was changed for a claim ({note.value}), and no claim needs the change"
            yield _about(
                "ChangeNotNeeded", f"GPU {note.gpu}", seen, "a node process restores it within 30 s; else --repair"
            )
    for orphan in content.orphans:
        if not content.rebuild_pending:
            seen = f"partition {orphan.partition.id} was created for a claim that no longer exists ({orphan.uid})"
            yield _about("OrphanedPartition", f"GPU {orphan.partition.id.gpu_uuid}", seen, _LATER)
    saved = {each.orphan.partition.id for backup in state.backups for each in backup.partitions}
    for entry in content.entries:
        for device in entry.devices:
            part = device.partition
            if part is not None and part.created_by_driver and part.id not in saved and not device.admin_access:
                seen = f"partition {part.id} is not in the GPU state backup: it would stay if the journal is lost"
                yield _about("NoPartitionBackup", f"claim {entry.ref}", seen, _LATER)


def _hardware(state: NodeState) -> Iterator[Finding]:
    if state.hardware_problem is not None:
        yield _about("GpusUnreadable", "GPUs", state.hardware_problem, "check the NVIDIA driver of the node")
    if state.gpus is None or state.journal.content is None:
        return
    for entry in state.entries:
        if entry.state is State.PREPARED and not state.is_of_earlier_boot(entry):
            for device in entry.devices:
                seen = _missing(state.gpus.get(device.gpu_uuid), device)
                if seen is not None:
                    advice = "delete the pods of the claim; the GPU may have been reset, replaced or lost"
                    yield _about("DeviceMissing", f"claim {entry.ref}", seen, advice)
    for note in state.journal.content.notes:
        gpu = state.gpus.get(note.gpu)
        if note.key == MIG_MODE and gpu is not None and not gpu.mig_enabled:
            seen = "MIG mode is off, and the journal records that this driver enabled it"
            yield _about("MigModeOff", f"GPU {note.gpu}", seen, _LATER)


def _missing(gpu: Gpu | None, device: AssignedDevice) -> str | None:
    """The part of a device that does not exist on the GPU; None if all exists as recorded."""
    if gpu is None:
        return f"its GPU {device.gpu_uuid} was not found"
    part = device.partition
    if part is None or part.live is None:
        return None
    ids = {(each.gi_id, each.device.ci_id) for each in gpu.mig_instances if each.device is not None}
    if (part.live.gi_id, part.live.ci_id) in ids:
        return None
    return f"its partition {part.id} (GPU instance {part.live.gi_id}) does not exist on gpu-{gpu.minor}"


def _mps(state: NodeState) -> Iterator[Finding]:
    wanted = [daemon for daemon in state.mps.daemons if daemon.wanted]
    needed = _needed_daemons(state)
    if (wanted or state.mps.mounts) and state.mps.host_problem is not None:
        advice = "start the MPS host (DaemonSet dra-driver-mps-host): its clients cannot connect"
        if state.mps.host_lives:
            advice = "do not restart it while its clients run"
        yield _about("MpsHostFailed", "MPS", state.mps.host_problem, advice)
    for daemon in wanted:
        if state.mps.host_problem is None and daemon.status != "ready":
            seen = f"it is {daemon.status or 'not started'}: {daemon.reason or 'no reason was given'}"
            yield _about("DaemonNotReady", f"MPS daemon {daemon.id}", seen, "read the log of the MPS host")
        if needed is not None and daemon.id not in needed:
            yield _about("DaemonNotNeeded", f"MPS daemon {daemon.id}", "no claim needs it", _LATER)
    for daemon_id in sorted((needed or set()) - {daemon.id for daemon in wanted}):
        seen = "a prepared claim needs it, and it is not requested"
        yield _about("DaemonNotRequested", f"MPS daemon {daemon_id}", seen, "delete the pods of the claim")
    for daemon_id in sorted(set(state.mps.mounts) - {daemon.id for daemon in state.mps.daemons}):
        seen = "its file system in memory is still mounted, and it is not requested"
        yield _about("MountLeft", f"MPS daemon {daemon_id}", seen, "the MPS host unmounts it at its next start")


def _needed_daemons(state: NodeState) -> set[str] | None:
    """None if some claims are unknown."""
    content = state.journal.content
    if content is None or content.rebuild_pending:
        return None
    shared = (device.sharing for entry in content.entries for device in entry.devices if device.sharing is not None)
    return {each.daemon.id for each in shared if each.strategy is Strategy.MPS and each.daemon is not None}


def _processes(state: NodeState) -> Iterator[Finding]:
    served = [found.path for found in state.sockets if found.served]
    if state.runs and not served:
        seen = "a node process runs, but none of its sockets accepts connections"
        yield _about("NoSocketServed", "sockets", seen, "it recreates them within seconds; else read its log")
    if not state.runs:
        for found in state.sockets:
            seen = "no process listens on this socket" if not found.served else "another driver of this name serves it"
            advice = "the next start of the node process replaces it" if not found.served else "stop that driver"
            yield _about(
                "OtherDriver" if found.served else "StaleSocket", found.path, seen, advice, is_problem=found.served
            )


def _health(state: NodeState) -> Iterator[Finding]:
    if state.health_problem is not None:
        advice = "the next start of the node process keeps a copy and starts with an empty file"
        yield _about("HealthUnreadable", "health of GPUs", state.health_problem, advice)

"""Ten probes for a first session on a real GPU, in order of worth (checks 15 to 24, with ``--for``).

Each only reads, or undoes its changes, in at most three minutes. `CudaLoadProcess` or ffmpeg loads the GPU, in
processes that end with the probe. The judges do no I/O; ``decides`` explains the meaning of an answer. A probe that
cannot load the GPU is skipped with its requirement, or has no verdict: never ok.
"""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

from dra_driver.core.finding import Finding, Status
from dra_driver.diagnose.hardware import cuda, nvml_session, values
from dra_driver.diagnose.hardware.child import Task
from dra_driver.diagnose.hardware.cuda_load import CudaLoadProcess, Load
from dra_driver.diagnose.hardware.look import UNPRIVILEGED_UID, LookRequest, look
from dra_driver.hardware.driver_root.search import CUDA, find_library
from dra_driver.hardware.gpu.nvml import probes
from dra_driver.hardware.gpu.nvml.backend import NvmlBackend, open_device_files
from dra_driver.hardware.gpu.nvml.errors import ABSENT
from dra_driver.hardware.sharing import control
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.mps_files import DaemonFolder, MpsDaemon

LIMIT_S: Final = 180.0
NEEDS_CUDA: Final = f"not tried: it needs {CUDA} of the NVIDIA driver, which is missing below "
NEEDS_FFMPEG: Final = (
    "not tried: it needs ffmpeg on PATH, built with cuvid and nvenc, and the driver's libnvcuvid and libnvidia-encode"
)
BUSY_S: Final = 4
"""Number of samples of a busy GPU, one each second."""
PERIODS_S: Final = (2, 10, 30)
BURST_MS: Final = 20.0
LOOK_EVERY_S: Final = 2.5
SHARED_MIB: Final = 4096
MAX_OFFSET_S: Final = 5.0
EVENT_S, MAX_EVENTS = 10.0, 5
DETACH_S: Final = 30.0
ILLEGAL_ADDRESS: Final = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
XID_OF_FAULT: Final = 31
NO_ID: Final = 0xFFFFFFFF
PROCESSES, OLDER = probes.UTILISATION
LISTS: Final = tuple(f"listed {kind}" for kind in probes.PROCESS_KINDS)
_ENGINE_FIELDS: Final = {"encoder": "encUtil", "decoder": "decUtil", "jpeg": "jpgUtil"}


def _with_cuda(read: Callable[[Task, str], values.Topics]) -> Callable[[Task], values.Topics]:
    """Make a reader that is skipped if the driver has no CUDA; ``read`` also gets the library."""

    @wraps(read)
    def found(task: Task) -> values.Topics:
        library = find_library(task.root, CUDA)
        if library is None:
            yield "skipped", NEEDS_CUDA + task.root
        else:
            yield from read(task, library)

    return found


def _load(task: Task, library: str, **work: Any) -> CudaLoadProcess:
    environment = cuda.program_environment(task.root, library, {"CUDA_VISIBLE_DEVICES": task.chosen.uuid})
    return CudaLoadProcess(Load(library=library, **work), environment)


def _opened(task: Task) -> probes.Handle:
    NvmlBackend(task.library).open()
    return probes.handle_at(task.chosen.index)


def _look(task: Task, **how: Any) -> dict[str, Any]:
    return look(LookRequest(library=task.library, index=task.chosen.index, **how))


@_with_cuda
def read_clock(task: Task, library: str) -> values.Topics:
    """Topics ``load`` and ``looks``: usage of the GPU, once a second while a CUDA program is busy."""
    handle = _opened(task)
    with _load(task, library, kernel="spin") as load:
        yield "load", load.started | {"pid": load.pid}
        looks = []
        for _ in range(BUSY_S):
            time.sleep(1.0)
            looks.append(probes.usage(handle))
            yield "looks", looks


@cuda.with_daemon
def read_mps(program: ControlProgram, _wanted: MpsDaemon, folder: DaemonFolder, shm: Path, task: Task) -> values.Topics:
    """Topics ``host`` and ``namespace``: usage by a client of a private MPS daemon, read in both."""
    answer = cuda.ready(partial(cuda.send, program, folder, shm))
    library = find_library(task.root, CUDA)
    if library is None or answer["refused"]:
        yield "skipped", NEEDS_CUDA + task.root if library is None else f"not tried: MPS: {answer['refused']}"
        return
    enter = control.View(pipe=folder.pipe, log=folder.log, shm=shm).enter
    environment = cuda.client_environment(folder, task.root, library)
    work = Load(library=library, kernel="spin", mib=512)
    with CudaLoadProcess(work, environment, enter) as load:
        yield "load", load.started | {"pid": load.pid}
        time.sleep(BUSY_S)
        yield "host", _look(task)
        yield "namespace", _look(task, own_pids=True)
    cuda.send(program, folder, shm, control.QUIT)


@_with_cuda
def read_namespace(task: Task, library: str) -> values.Topics:
    """Topics ``host`` and ``namespace``: usage by a plain CUDA program, read in both."""
    with _load(task, library, kernel="spin", mib=1024) as load:
        yield "load", load.started | {"pid": load.pid}
        time.sleep(BUSY_S)
        yield "host", _look(task)
        yield "namespace", _look(task, own_pids=True)


def read_engines(task: Task) -> values.Topics:
    """Topic per engine: usage while ffmpeg uses only that engine; with its exit status and last output."""
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        yield "skipped", NEEDS_FFMPEG
        return
    handle = _opened(task)
    source = ("-f", "lavfi", "-i", "testsrc2=s=1920x1080:r=60")
    clip, still = (str(Path(task.folder, name)) for name in ("clip.mp4", "still.avi"))
    sink = ("-f", "null", "-")
    for name, arguments, seconds in (
        ("encoder", (*source, "-t", "600", "-c:v", "h264_nvenc", *sink), 8.0),
        ("clip", (*source, "-t", "5", "-c:v", "h264_nvenc", clip), 30.0),
        ("decoder", ("-stream_loop", "-1", "-c:v", "h264_cuvid", "-i", clip, *sink), 8.0),
        ("still", (*source, "-t", "5", "-c:v", "mjpeg", still), 30.0),
        ("jpeg", ("-stream_loop", "-1", "-c:v", "mjpeg_cuvid", "-i", still, *sink), 8.0),
    ):
        yield name, _ffmpeg(task, [ffmpeg, "-hide_banner", "-loglevel", "error", "-y", *arguments], seconds, handle)


def _ffmpeg(task: Task, command: Sequence[str], seconds: float, handle: probes.Handle) -> dict[str, Any]:
    """``looks`` while it runs, at most ``seconds``; ``status`` is None if it was stopped."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": task.chosen.uuid}
    words = Path(task.folder, "ffmpeg.log")
    with words.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    end, looks = time.monotonic() + seconds, []
    try:
        while process.poll() is None and time.monotonic() < end:
            with suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
            looks.append(probes.usage(handle))
        status = process.poll()
    finally:
        process.kill()
        process.wait()
    said = words.read_text("utf-8", "replace")[-300:]
    return {"pid": process.pid, "status": status, "looks": looks[-3:], "output": said}


@_with_cuda
def read_bursts(task: Task, library: str) -> values.Topics:
    """Topic per period: for each sample the new values of the program, and the number of values above 0."""
    handle = _opened(task)
    for period in PERIODS_S:
        with _load(task, library, kernel="spin", busy_ms=BURST_MS, period_s=float(period)) as load:
            yield "load", load.started
            seen: dict[str, dict[int, int]] = {name: {} for name in probes.UTILISATION}
            rates = []
            end = time.monotonic() + max(10.0, 2.0 * period)
            while time.monotonic() < end:
                time.sleep(LOOK_EVERY_S)
                usage = probes.usage(handle)
                rates.append(_value(usage, "rates", {}).get("gpu"))
                for name, samples in seen.items():
                    samples |= {one["timeStamp"]: one["smUtil"] for one in _value(usage, name, ())}
            counted = {
                name: {
                    "code": usage[name].get("code"),  # of the last sample; None for an answer
                    "samples": len(samples),
                    "above 0": sum(value > 0 for value in samples.values()),
                }
                for name, samples in seen.items()
            }
            yield f"every {period} s", counted | {"rates": rates}


@_with_cuda
def read_shared(task: Task, library: str) -> values.Topics:
    """Topics ``before``, ``owner`` and ``both``: memory while 0, 1 and 2 processes have one buffer mapped."""
    handle = _opened(task)
    yield "before", probes.usage(handle)
    with _load(task, library, mib=SHARED_MIB, share=True) as owner:
        yield "load", owner.started
        yield "owner", probes.usage(handle)
        if "handle" not in owner.started:
            return
        with _load(task, library, handle=owner.started["handle"]) as second:
            yield "load", owner.started | second.started
            yield "pids", [owner.pid, second.pid]
            yield "both", probes.usage(handle)


@_with_cuda
def read_xid(task: Task, library: str) -> values.Topics:
    """Topics ``load`` and ``events``: the codes of an illegal access by a child process, and NVML's events, at most
    `MAX_EVENTS`: one fault may cause several XIDs."""
    handle = _opened(task)
    with probes.xid_events(handle) as wait, _load(task, library, kernel="poke") as load:
        yield "load", load.started
        events: list[dict[str, Any]] = []
        while len(events) < MAX_EVENTS:
            events.append(wait(int(EVENT_S * 1000)))
            yield "events", events
            if events[-1].get("value", {}).get("eventData", XID_OF_FAULT) == XID_OF_FAULT:
                return


def read_links(task: Task) -> values.Topics:
    """Per GPU: MIG mode, and state and remote end of each link that NVML has a number for."""
    NvmlBackend(task.library).open()
    for index, handle in probes.handles().items():
        yield (
            str(index),
            {"mode": probes.ask(partial(probes.pynvml.nvmlDeviceGetMigMode, handle))} | probes.links(handle),
        )


def read_detach(task: Task) -> values.Topics:
    """Topics ``before``, ``waiting``, ``detached``: open device files and references to the kernel module."""
    backend = NvmlBackend(task.library)
    yield "before", _held()
    backend.open()
    backend.snapshot()
    waits: list[Callable[[float], object]] = [backend.wait_for_event, backend.wait_for_health_events]
    threads = [threading.Thread(target=wait, args=(LIMIT_S,), name="wait", daemon=True) for wait in waits]
    for thread in threads:
        thread.start()
    time.sleep(1.0)  # both wait in NVML
    yield "waiting", _held()
    begin = time.monotonic()
    is_free = backend.detach("hardware-check", DETACH_S)
    yield "detached", _held() | {"free": is_free, "seconds": round(time.monotonic() - begin, 2)}


def _held() -> dict[str, object]:
    return {"files": list(open_device_files()), "references": nvml_session.module_references()}


def read_unprivileged(task: Task) -> values.Topics:
    """Topics ``root`` and ``unprivileged``: every read of this package, as this user and as user 65534."""
    yield "root", _look(task, everything=True)
    yield "unprivileged", _look(task, everything=True, uid=UNPRIVILEGED_UID)


def _value(answers: values.Facts, name: str, other: Any) -> Any:
    return answers.get(name, {}).get("value", other)


def _idle(facts: values.Facts) -> Finding | None:
    """A finding if the CUDA program failed: the probe proved nothing."""
    problem = facts["load"].get("error")
    return Finding(status=Status.UNKNOWN, seen=f"the CUDA program: {problem}") if problem else None


def _concluded(differences: Sequence[str], seen: str, unknown: str = "") -> Finding:
    """A finding without a meaning: ``decides`` has it."""
    return values.judgement(differences, seen, right="", wrong="", unknown=unknown)


def _listed(usage: values.Facts) -> dict[int, int | None]:
    """Memory in bytes by PID; None if NVML does not report it."""
    return {one["pid"]: one["memory"] for name in LISTS for one in _value(usage, name, ())}


def _seen(usage: values.Facts) -> str:
    """Counts of one sample: listings, samples, device."""
    if "error" in usage:
        return str(usage["error"])
    listed = ", ".join(f"{name.removeprefix('listed ')} {_count(usage[name])}" for name in LISTS)
    sampled = ", ".join(f"{name.removeprefix('nvmlDeviceGet')} {_count(usage[name])}" for name in probes.UTILISATION)
    used = _value(usage, probes.MEMORY_V2, {}).get("used")
    memory = "unknown" if used is None else f"{used >> 20} MiB"
    return f"{listed}; {sampled}; GPU {_value(usage, 'rates', {}).get('gpu', 'unknown')} %, {memory} used"


def _count(answer: values.Facts) -> str:
    return str(len(answer["value"])) if "value" in answer else f"code {answer.get('code')}"


def clock(facts: values.Facts, _survey: values.Facts) -> Finding:
    """Samples of a busy process have the CPU's time within 5 s."""
    if (idle := _idle(facts)) is not None:
        return idle
    offsets, differences, spans = [], [], []
    for usage in facts["looks"]:
        for name in probes.UTILISATION:
            stamps = [one["timeStamp"] for one in _value(usage, name, ())]
            if stamps:
                offsets.append((usage["cpu_us"]["value"] - max(stamps)) / 1e6)
                spans.append((max(stamps) - min(stamps)) / 1e6)
    if not offsets:
        return Finding(status=Status.UNKNOWN, seen=f"no samples of a busy process: {_seen(facts['looks'][-1])}")
    worst = max(offsets, key=abs)
    if abs(worst) > MAX_OFFSET_S:
        differences.append(f"the newest sample is {worst:.1f} s behind the CPU's clock")
    return _concluded(
        differences,
        f"{len(offsets)} answers, offset {min(offsets):.2f} to {max(offsets):.2f} s, samples of {max(spans):.1f} s",
    )


def _both_views(facts: values.Facts) -> Finding:
    if (idle := _idle(facts)) is not None:
        return idle
    host, inside, pid = facts["host"], facts["namespace"], facts["load"]["pid"]
    if "error" in host or "error" in inside:
        return Finding(status=Status.UNKNOWN, seen=f"host: {_seen(host)}; PID namespace: {_seen(inside)}")
    differences = []
    if pid not in _listed(host):
        differences.append(f"process {pid} is not listed on the host, only {sorted(_listed(host))}")
    busy = [
        name for name in probes.UTILISATION for one in _value(host, name, ()) if one["pid"] == pid and one["smUtil"]
    ]
    if not busy:
        differences.append(f"no utilisation call reports the busy process {pid}")
    if _listed(inside):
        differences.append(f"a separate PID namespace lists {sorted(_listed(inside))}")
    memory = _listed(host).get(pid)
    return _concluded(
        differences,
        f"host: {_seen(host)}, memory of process {pid}: {memory}; PID namespace: {_seen(inside)}",
    )


def mps(facts: values.Facts, _survey: values.Facts) -> Finding:
    """A busy client of MPS is listed with its PID, memory and utilisation on the host, but not in a PID namespace."""
    return _both_views(facts)


def namespace(facts: values.Facts, _survey: values.Facts) -> Finding:
    """A busy process is listed on the host with its PID, memory and utilisation, but not in another PID namespace."""
    return _both_views(facts)


def engines(facts: values.Facts, _survey: values.Facts) -> Finding:
    """A process that only encodes, decodes or reads JPEG appears in the utilisation of that engine."""
    differences, texts, failed = [], [], []
    for engine, field in _ENGINE_FIELDS.items():
        run = facts[engine]
        looks = run["looks"]
        if run["status"] is not None or not looks:
            failed.append(f"{engine}: ffmpeg ended with status {run['status']}: {run['output'].strip()}")
            continue
        samples = [one for usage in looks for one in _value(usage, PROCESSES, ()) if one["pid"] == run["pid"]]
        own = max((one.get(field, 0) for one in samples), default=None)
        sm = max((one["smUtil"] for one in samples), default=None)
        whole = max((_value(usage, engine, [0])[0] for usage in looks), default=0)
        texts.append(f"{engine} {own} % and SM {sm} % of the process, {whole} % of the GPU")
        if not own:
            differences.append(f"{engine}: {own} % of the process, {whole} % of the GPU")
    return _concluded(
        differences,
        "; ".join([*texts, *failed]),
        unknown=values.few(failed),
    )


def bursts(facts: values.Facts, _survey: values.Facts) -> Finding:
    """Bursts of 20 ms every 2, 10 and 30 s appear in samples that are read every 2.5 s."""
    if (idle := _idle(facts)) is not None:
        return idle
    periods = {topic: value for topic, value in facts.items() if topic.startswith("every ")}
    texts, differences = [], []
    for topic, value in periods.items():
        counts = {name: value[name] for name in probes.UTILISATION}
        texts.append(f"{topic}: " + ", ".join(f"{one['above 0']} of {one['samples']}" for one in counts.values()))
        if not any(one["above 0"] for one in counts.values()):
            differences.append(f"{topic}: no sample above 0")
    codes = {one["code"] for value in periods.values() for name in probes.UTILISATION for one in (value[name],)}
    if None not in codes:
        return Finding(status=Status.UNKNOWN, seen=f"no utilisation call answers: codes {sorted(codes)}")
    unknown = "" if len(periods) == len(PERIODS_S) else "not every period was read"
    return _concluded(
        differences,
        f"samples above 0 ({PROCESSES.removeprefix('nvmlDeviceGet')}, {OLDER.removeprefix('nvmlDeviceGet')}): "
        + "; ".join(texts),
        unknown=unknown,
    )


def shared(facts: values.Facts, _survey: values.Facts) -> Finding:
    """A CUDA IPC buffer of 4 GiB in two processes counts once in the sum over processes."""
    if (idle := _idle(facts)) is not None:
        return idle
    both, before = facts["both"], facts["before"]
    listed = {pid: memory for pid, memory in _listed(both).items() if pid in facts["pids"]}
    used = _value(both, probes.MEMORY_V2, {}).get("used")
    grown = None if used is None else used - _value(before, probes.MEMORY_V2, {}).get("used", 0)
    if len(listed) < len(facts["pids"]) or None in listed.values() or grown is None:
        return Finding(status=Status.UNKNOWN, seen=f"memory of processes {listed} of {facts['pids']}: {_seen(both)}")
    total = sum(memory for memory in listed.values() if memory is not None)
    differences = []
    if total > grown + (SHARED_MIB << 19):
        differences.append(f"processes have {total >> 20} MiB in sum, the GPU {grown >> 20} MiB more than before")
    return _concluded(
        differences,
        f"{len(listed)} processes with {total >> 20} MiB in sum; the GPU has {grown >> 20} MiB more in use than before",
    )


def xid(facts: values.Facts, _survey: values.Facts) -> Finding:
    """An illegal access ends its context with code 700, and NVML reports XID 31 of this GPU and of no instance."""
    codes = facts["load"].get("codes", {})
    if codes.get("cuCtxSynchronize") != ILLEGAL_ADDRESS:
        seen = f"the CUDA program: {facts['load'].get('error') or codes}"
        return Finding(status=Status.UNKNOWN, seen=f"no illegal access: {seen}")
    found = [event["value"] for event in facts["events"] if "value" in event]
    differences = [
        f"XID {one['eventData']} with ids {one['gpuInstanceId']} and {one['computeInstanceId']} on a whole GPU"
        for one in found
        if (one["gpuInstanceId"], one["computeInstanceId"]) != (NO_ID, NO_ID)
    ]
    numbers = ", ".join(str(one["eventData"]) for one in found) or "none"
    if all(one["eventData"] != XID_OF_FAULT for one in found):
        last = facts["events"][-1]
        differences.append(f"no event of XID {XID_OF_FAULT}: XIDs {numbers}, then code {last.get('code')}")
    return _concluded(
        differences,
        f"XIDs {numbers} with the ids of no instance",
    )


def links(facts: values.Facts, _survey: values.Facts) -> Finding:
    """A link is up, down, missing or beyond the last one, and all are down while MIG is on."""
    differences, texts = [], {}
    for index, answers in values.gpus(facts):
        states = {int(key.split()[1]): one for key, one in answers.items() if key.endswith(" state")}
        mode = _value(answers, "mode", None)
        up = [link for link, one in states.items() if one.get("value")]
        codes: dict[Any, int] = {}
        for one in states.values():
            word = ("up" if one["value"] else "down") if "value" in one else f"code {one.get('code')}"
            codes[word] = codes.get(word, 0) + 1
        texts[index] = f"MIG mode {mode}: " + ", ".join(f"{count} {word}" for word, count in codes.items())
        allowed = ABSENT | {probes.pynvml.NVML_ERROR_INVALID_ARGUMENT, None}
        odd = {one["code"] for one in states.values() if "value" not in one and one["code"] not in allowed}
        differences += [f"GPU {index}: code {code}" for code in sorted(odd)]
        if mode and mode[0] and up:
            differences.append(f"GPU {index}: {len(up)} links up in MIG mode (possible before the first instance)")
    return _concluded(
        differences,
        values.alike(texts),
        unknown="" if texts else "no GPU answers",
    )


def detach(facts: values.Facts, _survey: values.Facts) -> Finding:
    """Detaching during waits on both event sets frees every device file and the kernel module within 30 s."""
    before, waiting, after = facts["before"], facts["waiting"], facts["detached"]
    differences = [] if after["free"] else [f"not free after {after['seconds']} s"]
    if len(after["files"]) > len(before["files"]):
        differences.append(f"still open: {', '.join(after['files'])}")
    unknown = "" if waiting["files"] else "NVML opened no device file at all, so this is not NVIDIA's library"
    if None not in (before["references"], after["references"]) and after["references"] > before["references"]:
        unknown = unknown or "the kernel module has more references than before: another process has opened a GPU"
    counts = ", ".join(f"{name} {len(one['files'])} ({one['references']})" for name, one in facts.items())
    return _concluded(
        differences,
        f"open device files (references to the module): {counts}; {after['seconds']} s",
        unknown=unknown,
    )


def as_unprivileged(facts: values.Facts, _survey: values.Facts) -> Finding:
    """Every read that succeeds for root succeeds for user 65534, too."""
    root, unprivileged = facts["root"], facts["unprivileged"]
    if "error" in root or "error" in unprivileged:
        texts = (f"{name}: {facts[name]['error']}" for name in ("root", "unprivileged") if "error" in facts[name])
        return Finding(status=Status.UNKNOWN, seen="; ".join(texts))
    answered = [name for name, one in root.items() if _answered(one)]
    if not answered:
        return Finding(status=Status.UNKNOWN, seen="root got no answer at all")
    refused = [name for name in answered if not _answered(unprivileged.get(name, {}))]
    return _concluded(
        [f"{name}: code {unprivileged.get(name, {}).get('code', 'none')}" for name in refused],
        f"{len(answered)} of {len(root)} reads answer root, {len(answered) - len(refused)} an unprivileged user",
    )


def _answered(answer: Mapping[str, Any]) -> bool:
    return "value" in answer


FREE: Final[frozenset[values.Need]] = frozenset({"free GPU"})
ROOT: Final[frozenset[values.Need]] = frozenset({"root"})
READS: Final[frozenset[values.Need]] = frozenset()
_TABLE: Final[tuple[tuple[values.Judge, Callable[..., object], str, float, frozenset[values.Need]], ...]] = (
    (clock, read_clock, "GPU clock in samples", 60.0, FREE),
    (mps, read_mps, "use by an MPS client", 90.0, values.ON_FREE_GPU),
    (namespace, read_namespace, "processes in a PID namespace", 90.0, values.ON_FREE_GPU),
    (engines, read_engines, "each engine alone", LIMIT_S, FREE),
    (bursts, read_bursts, "short bursts", LIMIT_S, FREE),
    (shared, read_shared, "memory that two processes share", 60.0, FREE),
    (xid, read_xid, "XID of an illegal access", 60.0, FREE | {"xid"}),
    (links, read_links, "NVLinks 0 to 35", 60.0, READS),
    (detach, read_detach, "detaching while events are awaited", 75.0, READS),
    (as_unprivileged, read_unprivileged, "every read as user 65534", 90.0, ROOT),
)
"""Judge, reader, name, seconds and needs, in order of worth."""
_DECIDES: Final = {
    15: "H3: with an offset, samples must be read from the driver's last timestamp, never since the CPU's time",
    16: "H4: a busy client at 0 % or without samples stays unknown; H5: a list from a PID namespace is unusable",
    17: "H5: an empty list on a busy GPU is unknown, not unused",
    18: "H2: where a process shows no engine, only the GPU's engines show that a claim is used",
    19: "H6: a period with no sample above 0 makes a claim look unused: treat the sample as unknown, or sample sooner",
    20: "H8: where the sum exceeds the GPU's memory in use, the memory of these claims is unknown",
    21: "row of XID 31 in docs/health.md: an error of the program, counted, with the ids of no instance",
    22: "H1: the code of links with MIG on (run it in both modes); H9: the code that ends the list",
    23: "whether a driver upgrade or a GPU reset can begin while the node process waits for events",
    24: "whether the usage exporter can run without root on this driver",
}
PROBES: Final = tuple(
    values.hardware_check(number, name, read, limit_s, needs, decides=_DECIDES[number])(judge)
    for number, (judge, read, name, limit_s, needs) in enumerate(_TABLE, 15)
)

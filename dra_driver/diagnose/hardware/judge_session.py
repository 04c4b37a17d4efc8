"""Judge what a session holds and releases, libraries in turn, and first calls. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from dra_driver.diagnose.hardware.judging import ABSENT, alike, few, gpus, judgement, known
from dra_driver.diagnose.hardware.values import Facts, Judgement

STEPS: Final = ("before", "open", "snapshot", "event set", "event set freed", "closed")
SLOW_MS: Final = 60_000.0
"""The backend's own limit for one NVML call."""
_NOTED_MS: Final = 5_000.0
_FABRIC_STATES: Final = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}


def held(facts: Facts, _survey: Facts) -> Judgement:
    """Check 2: closing the session releases every device file and the kernel module."""
    steps = {step: facts[step] for step in STEPS}
    opened = {step: len(_open(one)) for step, one in steps.items()}
    differences = []
    if opened["closed"] > opened["before"]:
        differences.append(f"after closing, still open: {', '.join(_open(steps['closed']))}")
    if opened["event set freed"] > opened["snapshot"]:
        differences.append(
            f"{opened['event set freed']} files after freeing the event set, {opened['snapshot']} before"
        )
    counts = ", ".join(f"{step} {opened[step]}{_references(one)}" for step, one in steps.items())
    before, closed = steps["before"]["references"], steps["closed"]["references"]
    unknown = ""
    if not max(opened.values()):
        unknown = "NVML opened no device file at all, so this is not NVIDIA's library"
    elif before is not None and closed is not None and closed > before:
        unknown = "the kernel module has more references than before: another process has opened a GPU meanwhile"
    return judgement(
        differences,
        f"open device files (references to the module): {counts}",
        right="detaching releases the GPUs: the driver can be upgraded and a GPU reset while the node process runs",
        wrong="detaching is not enough: the driver cannot be upgraded and a GPU not be reset beside the node process",
        unknown=unknown,
    )


def _open(step: Mapping[str, Any]) -> list[str]:
    return [*step["files"], *step["mappings"]]


def _references(step: Mapping[str, Any]) -> str:
    return "" if step["references"] is None else f" ({step['references']})"


def copies(facts: Facts, _survey: Facts) -> Judgement:
    """Check 9: after a session's end, the next one uses the library that it is given, and sees the same."""
    sessions = [value for topic, value in facts.items() if topic.startswith("session")]
    first = sessions[0]
    differences = []
    for number, session in enumerate(sessions, 1):
        if session["library"] not in session["mapped"] and not _same_name(session):
            differences.append(f"session {number} did not load {session['library']}")
        if (session["gpus"], session["driver"]) != (first["gpus"], first["driver"]):
            differences.append(f"session {number} sees other GPUs than session 1")
    threads = facts["threads"]
    if threads["failed"]:
        differences.append(f"looks from several threads failed: {few(threads['failed'])}")
    if threads["different"]:
        differences.append(f"{threads['different']} of {threads['looks']} looks from several threads saw other values")
    if threads["hanging"]:
        differences.append(f"{threads['hanging']} threads did not return")
    return judgement(
        differences,
        f"{len(sessions)} sessions with libraries in turn, {threads['looks']} looks from threads in {threads['ms']} ms",
        right="a driver upgrade is followed without a restart of the node process",
        wrong="after a driver upgrade the node process would use the former library, or fail",
    )


def _same_name(session: Mapping[str, Any]) -> bool:
    """The linker's path may name the library by its real file."""
    return any(path.endswith("/" + session["library"].rpartition("/")[2]) for path in session["mapped"])


def first_calls(facts: Facts, _survey: Facts) -> Judgement:
    """Check 11: nvidia-smi runs in the environment that it gets, states are known, and first calls end in time."""
    differences = []
    times = [facts["open_ms"]]
    for index, gpu in gpus(facts):
        times.append(gpu["first_handle"]["ms"])
        fabric, persistence = gpu.get("fabric", {}), gpu.get("persistence", {})
        if "value" in fabric and fabric["value"] not in _FABRIC_STATES:
            differences.append(f"GPU {index}: unknown fabric state {fabric['value']}")
        differences += [
            f"GPU {index}: {name}: code {answer.get('code')}"
            for name, answer in (("fabric", fabric), ("persistence", persistence))
            if answer and not known(answer, ABSENT)
        ]
    slowest = max(times)
    if slowest > SLOW_MS:
        differences.append(f"a first call took {slowest / 1000:.0f} s, longer than the backend waits")
    smi = facts["nvidia-smi"]
    if "error" in smi:
        differences.append(smi["error"])
    slow = ": enable persistence mode, so that GPUs stay awake" if slowest > _NOTED_MS else ""
    states = alike({index: _state(gpu) for index, gpu in gpus(facts)})
    return judgement(
        differences,
        f"opening {facts['open_ms']:.0f} ms, slowest first call {slowest:.0f} ms{slow}; fabric of {states}; "
        f"nvidia-smi compute-policy {'is missing' if 'missing' in smi else 'works'}",
        right="time slices can be set, and polling starts in time",
        wrong="time slices cannot be set" if "error" in smi else "the backend would wait too long or misread a state",
        unknown=f"{smi['missing']}; time slices cannot be set on this node" if "missing" in smi else "",
    )


def _state(gpu: Mapping[str, Any]) -> str:
    fabric = gpu.get("fabric", {})
    return _FABRIC_STATES.get(fabric["value"], str(fabric["value"])) if "value" in fabric else "none"

"""Judge CUDA in a container's view, and the MPS daemon. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.diagnose.hardware.judging import few, judgement
from dra_driver.diagnose.hardware.read_mps import LIMIT_MIB, OVER_MIB, UNDER_MIB
from dra_driver.diagnose.hardware.values import Facts, Judgement

_OUT_OF_MEMORY: Final = 2
_NEEDED: Final = ("cuInit", "cuDeviceGet", "cuCtxCreate_v2")


def contexts(facts: Facts, _survey: Facts) -> Judgement:
    """Check 1: a context with the nodes and libraries of a claim; none without UVM's nodes."""
    seen, without = facts["container"], facts["without uvm"]
    if "error" in seen:
        return Judgement(
            verdict="cannot tell" if seen.get("permission") else "differs",
            seen=seen["error"],
            meaning="the check needs a privileged process" if seen.get("permission") else _NO_CUDA,
        )
    uuid = facts["gpu"]["uuid"].removeprefix("GPU-")
    differences = [f"{name}: {code}" for name, code in _failed(seen)]
    if not differences and seen.get("count") != 1:
        differences.append(f"{seen.get('count')} devices are visible, expected 1")
    if not differences and seen.get("uuid") != uuid:
        differences.append(f"the visible device is {seen.get('uuid')}, expected {uuid}")
    strict = not differences and not list(_failed(without)) and "error" not in without
    if strict:
        differences.append("CUDA works without /dev/nvidia-uvm too")
    text = without.get("error") or few(f"{name} {code}" for name, code in _failed(without)) or "works"
    return judgement(
        differences,
        f"CUDA {seen.get('version')} made a context with {len(facts['edits']['nodes'])} nodes and "
        f"{len(facts['edits']['files'])} files; without UVM's nodes: {text}",
        right="a pod with a whole GPU can run CUDA, and only where UVM is loaded",
        wrong="a claim without UVM is refused needlessly" if strict else _NO_CUDA,
    )


_NO_CUDA: Final = "a pod would get its GPU and could not run CUDA"


def _failed(seen: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Calls with another code than success; and those that were never reached."""
    for name, code in seen.items():
        if name.startswith("cu") and code != 0:
            yield name, code
    for name in _NEEDED:
        if name not in seen and "error" not in seen and all(code == 0 for key, code in seen.items() if key[:2] == "cu"):
            yield f"{name} (not reached)", -1


def daemon(facts: Facts, _survey: Facts) -> Judgement:
    """Check 10: each command is accepted, a client works and keeps its limit, and the daemon ends when told."""
    commands, client = facts["commands"], facts.get("client", {})
    differences = [f"`{one['command']}`: {one['refused']}" for one in commands if one["refused"]]
    under, over = f"cuMemAlloc {UNDER_MIB} MiB", f"cuMemAlloc {OVER_MIB} MiB"
    if not differences:
        differences += _client_differences(client, under, over)
        if facts.get("end", {}).get("status") is None:
            differences.append("the daemon did not end after `quit`")
    outputs = "; ".join(
        f"{one['command'].split()[0]} -> {one['output'].strip()!r}" for one in commands if "output" in one
    )
    return judgement(
        differences,
        f"{outputs}; a client with a limit of {LIMIT_MIB} MiB: {under} {client.get(under)}, {over} {client.get(over)}",
        right="shares by MPS get a daemon that takes their limits",
        wrong="shares by MPS would not start, or would not keep their limits",
    )


def _client_differences(client: Mapping[str, Any], under: str, over: str) -> Iterator[str]:
    if "error" in client:
        yield f"CUDA program: {client['error']}"
        return
    failed = [(name, code) for name, code in _failed(client) if name != over]
    yield from (f"CUDA program: {name}: {code}" for name, code in failed)
    if not failed and client.get(under) == 0 and client.get(over) != _OUT_OF_MEMORY:
        yield f"a client with {LIMIT_MIB} MiB got code {client.get(over)} for {OVER_MIB} MiB, expected {_OUT_OF_MEMORY}"

"""Whole slices, compared with files that a person can read.

The files are written anew with ``python -m tests.unit.node.slices.test_golden``; the difference is what users will see.
"""

import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy, Taint
from dra_driver.hardware.gpu.simulated.spec import parse_document
from dra_driver.node.slices.build import build_devices, pool_name
from dra_driver.node.slices.diff import PoolIdentity, compute_writes
from dra_driver.node.slices.gates import ApiServerFeatures
from dra_driver.node.slices.layout import split
from tests.fakes.dra_objects import wire
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.unit.node.slices.gpus import A100, ALL, H100, NONE, gpu, instance, mig_gpu, node_of, snapshot

GOLDEN = Path(__file__).parents[3] / "golden" / "slices"


def with_foreign_instances(board: Gpu) -> Gpu:
    """A partition of another manager in the middle, and an incomplete one."""
    instances = (instance(board, 14, 2), instance(board, 19, 6, whole=False))
    return replace(board, mig_enabled=True, mig_instances=instances)


GB10 = gpu(
    product_name="NVIDIA GB10", architecture="Blackwell", cuda_compute_capability=(12, 1), memory_bytes=None,
    pci_bus_id="000f:01:00.0", pcie_root="pci000f:00", addressing_mode="ATS", mig_capable=False,
)  # fmt: skip
_BRIDGED = """
confidentialCompute: "off"
gpus:
- {model: h100-pcie-80gb, nvlink: bridge-a}
- {model: h100-pcie-80gb, nvlink: bridge-b}
- {model: h100-pcie-80gb, nvlink: bridge-a}
- {model: h100-pcie-80gb, nvlink: bridge-b}
- {model: h100-pcie-80gb}
"""
BRIDGED = SimulatedBackend(parse_document(_BRIDGED, "node-a")).snapshot()
SHARED = GpuTerms(
    policy="shared",
    profiles=frozenset(),
    sharing=SharingTerms(strategy=Strategy.MPS, max_shares=8),
    taints=(Taint(key="example.com/shared", effect="NoSchedule"),),
    attributes={"team": "vision"},
)
# File: what it shows, the node, the terms of all its GPUs, what the API server keeps.
CASES: dict[str, tuple[str, Snapshot, GpuTerms, ApiServerFeatures]] = {
    "two-h100.yaml": (
        "What a node publishes whose driver tells nothing about MIG: one slice, devices in order of minor number.",
        node_of(2), GpuTerms(), ALL),
    "five-h100-pcie-two-pairs.yaml": (
        "Two bridge pairs, whose minor numbers are not in order, and a GPU without: it is first, then pair by pair.",
        BRIDGED, GpuTerms(), NONE),
    "one-gb10-unified-memory.yaml": (
        "Unified memory: NVML tells no total, so there is no memory capacity, and nobody may guess one.",
        snapshot(GB10), GpuTerms(), ALL),
    "no-gpu.yaml": (
        "No GPU: one empty slice, so that the scheduler knows the pool to be empty and does not wait for it.",
        snapshot(), GpuTerms(), ALL),
    "one-h100.yaml": (
        "One H100 as it comes: the whole GPU and every placement, taken from one counter set.",
        snapshot(mig_gpu(H100)), GpuTerms(), ALL),
    "one-h100-without-counters.yaml": (
        "The same GPU where the API server drops counters (1.34 and 1.35 as they come): nothing that overlaps.",
        snapshot(mig_gpu(H100)), GpuTerms(), NONE),
    "one-h100-kubernetes-1.34.yaml": (
        "The same GPU in Kubernetes 1.34: counter set and devices in one slice.",
        snapshot(mig_gpu(H100)), GpuTerms(), replace(ALL, counters_beside_devices=True, taints_1_35=False)),
    "one-a100-mig-off.yaml": (
        "Ampere switches MIG mode only with a reset, which is not ours to do: whole.",
        snapshot(mig_gpu(A100)), GpuTerms(), ALL),
    "one-a100-mig-on.yaml": (
        "Ampere with MIG mode on: every placement, and not the whole GPU.",
        snapshot(mig_gpu(A100, mig_enabled=True)), GpuTerms(), ALL),
    "one-a100-foreign-instances.yaml": (
        "Somebody made a 2g.10gb at memory slice 2, published with its UUID, and began a 1g.5gb at 6, which is not: "
        "both are gone from the counters, and so are the placements that overlap them.",
        snapshot(with_foreign_instances(mig_gpu(A100))), GpuTerms(), ALL),
    "one-h100-shared.yaml": (
        "A policy shares the H100 through MPS, among eight at most, and allows no partitions.",
        snapshot(mig_gpu(H100)), SHARED, ALL),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_slices_are_as_in_the_file(name: str) -> None:
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents = yaml.load_all((GOLDEN / name).read_text(), Loader=loader)
    assert slices_of(name) == list(documents)


def test_every_file_is_compared() -> None:
    assert {path.name for path in GOLDEN.glob("*.yaml")} == set(CASES)


def slices_of(name: str) -> list[Any]:
    _, shot, terms, features = CASES[name]
    identity = PoolIdentity(
        driver="gpu.nvidia.com", node="node-a", node_uid="0f1e2d3c", pool=pool_name("node-a", "gpu.nvidia.com")
    )
    built = build_devices(shot, {one.uuid: terms for one in shot.gpus}, features)
    slices = split(built, counters_beside_devices=features.counters_beside_devices)
    return [wire(body) for body in compute_writes(slices, [], identity).creates]


def written(name: str) -> str:
    comment = "".join(f"# {line}\n" for line in textwrap.wrap(CASES[name][0], 116))
    return comment + "---\n".join(_resource_slice(item) for item in slices_of(name))


def _resource_slice(item: dict[str, Any]) -> str:
    """Few things as YAML blocks, many things as one paragraph each."""
    spec = dict(item["spec"])
    many = {key: spec.pop(key) for key in ("sharedCounters", "devices") if key in spec}
    text = yaml.safe_dump({**item, "spec": spec}, sort_keys=False)
    for key, entries in many.items():
        text += f"  {key}:\n" + "".join(_entry(entry) for entry in entries)
    return text


def _entry(entry: dict[str, Any]) -> str:
    lines = [f"  - name: {entry['name']}"]
    for key, value in entry.items():
        if key == "consumesCounters":
            lines.append(f"    {key}:")
            for taken in value:
                lines += [f"    - counterSet: {taken['counterSet']}", *_packed("counters", taken["counters"], "      ")]
        elif isinstance(value, dict):
            lines += _packed(key, value, "    ")
        elif key != "name":
            lines.append(f"    {key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _packed(key: str, value: dict[str, Any], indent: str) -> list[str]:
    """As many entries to a line as fit, none of them broken."""
    units = [f"{name}: {_flow(one)}," for name, one in value.items()]
    glued = [unit.replace(" ", "\0") for unit in units]  # textwrap breaks at spaces
    inner = textwrap.wrap(" ".join(glued), 118, initial_indent=indent + "  ", subsequent_indent=indent + "  ",
                          break_long_words=False, break_on_hyphens=False)  # fmt: skip
    return [f"{indent}{key}: {{", *(line.replace("\0", " ") for line in inner), f"{indent}}}"]


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return text.removesuffix("...\n").strip()


if __name__ == "__main__":
    for file in CASES:
        (GOLDEN / file).write_text(written(file))

"""What other drivers keep in claims, templates and classes does not leave the cluster in a shared state."""

import json

from dra_driver.kube.state import ClusterState, shareable
from dra_driver.kube.state_file import text_of

SECRET = "hunter2"
CONFIG = [
    {"opaque": {"driver": "net.example.com", "parameters": {"any": [{"psk": SECRET}]}}},
    {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}},
]
NOTE = "kubectl.kubernetes.io/last-applied-configuration"


def claim(note: str) -> dict[str, object]:
    devices = {"config": CONFIG}
    seen = [{"driver": "net.example.com", "device": "eth0", "data": {"psk": SECRET}}]
    return {
        "metadata": {"name": "card", "annotations": {NOTE: note}},
        "spec": {"devices": devices},
        "status": {"allocation": {"devices": devices}, "devices": seen},
    }


def test_parameters_of_other_drivers_are_left_out() -> None:
    """In specs, allocations and the note of what was applied; this driver's own are what a reader needs."""
    state = ClusterState(
        claims=[claim(json.dumps({"spec": {"devices": {"config": CONFIG}}}))],
        templates=[{"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"config": CONFIG}}}}],
        classes=[{"metadata": {"name": "c"}, "spec": {"config": CONFIG}}],
    )
    text = text_of(shareable(state, ("gpu.nvidia.com",)), as_yaml=False)
    assert SECRET not in text
    assert text.count("GpuConfig") == 5
    assert text.count("net.example.com") == 6
    assert "GpuConfig" not in text_of(shareable(state, ("other.example.com",)), as_yaml=False)


def test_a_note_that_cannot_be_read_is_left_out() -> None:
    state = ClusterState(claims=[claim("{" + SECRET)])
    assert SECRET not in text_of(shareable(state, ("gpu.nvidia.com",)), as_yaml=False)

"""What a check finds, and the layers in the order in which a GPU reaches a container.

A layer works only while those before it do, so the first broken one is the answer; what is broken after it may be its
consequence. The names of layers and checks are part of the JSON report and do not change.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from msgspec import Struct


class FindingStatus(StrEnum):
    """``FAIL``: GPUs do not work because of it. ``WARN``: they may. ``UNKNOWN``: it could not be looked at."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Layer(StrEnum):
    """The layers in order; each needs those before it."""

    API_SERVER = "api-server"
    """The API server answers, and takes the credentials."""
    KUBERNETES = "kubernetes"
    """Version and feature gates."""
    API = "api"
    """resource.k8s.io is served."""
    CRDS = "crds"
    """CustomResourceDefinitions of the driver."""
    RIGHTS = "rights"
    """Rights of the driver's accounts."""
    DAEMONSET = "daemonset"
    """The DaemonSet of node processes, its pods and its image."""
    NODE = "node"
    """Nodes: labels, taints, readiness."""
    DRIVER = "driver"
    """NVIDIA's kernel driver and the driver root."""
    NVML = "nvml"
    UVM = "uvm"
    DEVICE_NODES = "device-nodes"
    TOOLKIT = "toolkit"
    """NVIDIA Container Toolkit: its CDI hook."""
    RUNTIME = "runtime"
    """Container runtime, its CDI switch, its default runtime."""
    GPUS = "gpus"
    """What the node process says of its GPUs: left out, unhealthy."""
    SOCKETS = "sockets"
    """The kubelet's plugin folders and the driver's sockets."""
    REGISTRATION = "registration"
    """The kubelet knows the driver."""
    SECOND_PUBLISHER = "second-publisher"
    """Something else offers the same GPUs."""
    SLICES = "slices"
    """ResourceSlices."""
    CLASSES = "classes"
    """DeviceClasses."""
    POLICIES = "policies"
    """GpuPolicies."""
    WORKLOAD = "workload"
    """Pods, claims and claim templates as people wrote them."""
    PREPARE = "prepare"
    """The node prepares claims."""
    CDI = "cdi"
    """CDI files and the device ids in them."""
    CONTAINER = "container"
    """What a container sees."""


ORDER: Final = {layer: number for number, layer in enumerate(Layer)}
"""Position of each layer, counted from 0."""


class LayerFinding(Struct, frozen=True, kw_only=True):
    """What one check says about one subject.

    ``check`` is the check's name, ``subject`` an object as ``kind/name`` or ``kind/namespace/name``, or "cluster".
    ``seen`` and ``expected`` are phrases without a full stop, ``do`` is a sentence about the next step; ``expected``
    and ``do`` are empty where all is well.
    """

    check: str
    layer: Layer
    status: FindingStatus
    subject: str
    seen: str
    expected: str = ""
    do: str = ""


def by_layer(findings: Iterable[LayerFinding]) -> tuple[LayerFinding, ...]:
    """The findings in the order of layers, otherwise as they were."""
    return tuple(sorted(findings, key=lambda finding: ORDER[finding.layer]))


def first_broken(findings: tuple[LayerFinding, ...]) -> LayerFinding | None:
    """The failure of the lowest layer; within a layer the first of the list. None without a failure."""
    failed = [finding for finding in findings if finding.status is FindingStatus.FAIL]
    return min(failed, key=lambda finding: ORDER[finding.layer], default=None)

"""Clusters of one node whose slices are what the driver publishes of simulated GPUs."""

from typing import Any

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.terms import GpuTerms, SharingTerms
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.kube.state import ClusterState
from dra_driver.node.slices import build_devices
from tests.fakes.dra_objects import DRIVER, allocated, claim, device_class, exactly, node
from tests.fakes.mig_cluster import EVERYTHING, published

Obj = dict[str, Any]
_TYPE = f'device.attributes["{DRIVER}"].type'


def slices(count: int = 1, *, terms: GpuTerms | None = None) -> list[Obj]:
    """The slices of node ``a`` with H100 boards, all under the same terms."""
    gpus = tuple(invent(catalog.model("h100-sxm5-80gb"), minor, "a") for minor in range(count))
    snapshot = Snapshot(driver_version=DEFAULT_DRIVER_VERSION, cuda_driver_version=DEFAULT_CUDA_VERSION, gpus=gpus)
    return published(build_devices(snapshot, {gpu.uuid: terms for gpu in gpus} if terms else {}, EVERYTHING))


def h100(count: int = 1, *, sharing: SharingTerms | None = None, **parts: Any) -> ClusterState:
    """Such a cluster, with classes for whole GPUs and for partitions."""
    terms = GpuTerms(policy="p", sharing=sharing) if sharing is not None else None
    classes = [
        device_class(f"{kind}.nvidia.com", expression=f'device.driver == "{DRIVER}" && {_TYPE} == "{kind}"')
        for kind in ("gpu", "mig")
    ]
    return ClusterState(**{"nodes": [node("a")], "classes": classes, "slices": slices(count, terms=terms), **parts})


def slice_name(start: int, gpu: int = 0) -> str:
    return f"gpu-{gpu}-mig-1g10gb-19-{start}"


def share(name: str, *, memory: str, percent: str, users: tuple[str, ...] = ()) -> Obj:
    """A claim that has a share of gpu-0."""
    found = having(name, "gpu-0", users=users)
    consumed = {"memory": memory, "computePercent": percent, "shares": "1"}
    found["status"]["allocation"]["devices"]["results"][0] |= {"shareID": f"id-{name}", "consumedCapacity": consumed}
    return found


def having(name: str, *devices: str, users: tuple[str, ...] = ()) -> Obj:
    """A claim that has devices of node ``a``."""
    found = allocated(claim(name, exactly()), *devices, node_name="a")
    found["status"]["reservedFor"] = [{"resource": "pods", "name": user, "uid": f"uid-of-{user}"} for user in users]
    return found

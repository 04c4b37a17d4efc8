"""A simulated DRA driver of network cards: a second driver on a node, for claims of a GPU and a card near it.

Attributes and pool are named as by DRANET (kubernetes-sigs/dranet pkg/apis/attributes.go, pkg/inventory/db.go), which
publishes no rail. Each GPU has one card, on its PCIe root and NUMA node. Containers get no network interface.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import ClaimError, DraError
from dra_driver.core.model.claim import AllocatedDevice, ClaimRef, PreparedDevice
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import ClaimUid
from dra_driver.kube.claims import ApiClaimReader
from dra_driver.kube.objects.resource import Device, DeviceAttribute
from dra_driver.kube.published import names
from dra_driver.kube.rest import RestClient
from dra_driver.node.process.endpoints import Endpoints, Registration
from dra_driver.node.process.service import Prepared, handlers, prepare_threads
from dra_driver.node.process.sockets import SocketPaths
from dra_driver.node.slices import DesiredSlice, Reconciler, RestSlicesApi

DRIVER: Final = "dra.net"
_SPEC: Final = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
_KIND: Final = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
DEVICE_CLASS: Final = {**_KIND, "metadata": {"name": "dranet"}, "spec": _SPEC}


def cards(gpus: Iterable[Gpu]) -> tuple[Device, ...]:
    return tuple(Device(name=f"nic-{gpu.minor}", attributes=_attributes(gpu)) for gpu in gpus)


def _attributes(gpu: Gpu) -> dict[str, DeviceAttribute]:
    address = f"{(gpu.pci_bus_id or '')[:-4]}10.0"  # a free device number of the GPU's bus
    texts = {"ifName": f"rdma{gpu.minor}", "rdmaDevice": f"mlx5_{gpu.minor}", "pciAddress": address, "state": "up"}
    own = {name: DeviceAttribute(string=text) for name, text in texts.items()}
    own |= {"rdma": DeviceAttribute(bool_=True), "virtual": DeviceAttribute(bool_=False)}
    root = {} if gpu.pcie_root is None else {names.PCIE_ROOT: DeviceAttribute(string=gpu.pcie_root)}
    numa = {} if gpu.numa_node is None else {names.NUMA_NODE: DeviceAttribute(int_=gpu.numa_node)}
    return {**{f"{DRIVER}/{name}": value for name, value in own.items()}, **root, **numa}


class NetworkDriver(Registration):
    """The driver of one node. Publishes its cards when a kubelet registers it: the kubelet deletes the slices of its
    node when it starts. ``prepared`` claims are lost when it stops. Start once, stop once; thread-safe."""

    def __init__(self, node: str, gpus: Iterable[Gpu], rest: RestClient, *, registry: Path, plugins: Path) -> None:
        self._cards = cards(gpus)
        self._claims = ApiClaimReader(rest, DRIVER)
        self._slices = Reconciler(RestSlicesApi(rest, DRIVER, node), DRIVER, node, node)
        self._cards_lock = threading.Lock()  # guards the next, and publishing
        self.prepared: dict[ClaimUid, Prepared] = {}
        folder = plugins / DRIVER
        folder.mkdir(parents=True, exist_ok=True)
        paths = SocketPaths.choose(driver=DRIVER, registrar_dir=registry, plugin_dir=folder)
        super().__init__(driver=DRIVER, endpoint=paths.dra)
        self._threads = prepare_threads()
        self._endpoints = Endpoints(paths, self, handlers(self, DRIVER, self._threads))

    def start(self) -> None:
        self._endpoints.start()

    def stop(self) -> None:
        self._endpoints.stop(0)
        self._threads.shutdown(wait=False)

    def notify(self, request: Any, context: Any) -> Any:
        with self._cards_lock:  # without the API server the call fails, and the kubelet registers the driver again
            self._slices.run([DesiredSlice(index=0, devices=self._cards)])
        return super().notify(request, context)

    def prepare(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Mapping[ClaimUid, Prepared | DraError]:
        found: dict[ClaimUid, Prepared | DraError] = {}
        for ref in refs:
            try:
                claim = self._claims.read(ref, within_s=within_s)
                with self._cards_lock:
                    found[ref.uid] = self.prepared[ref.uid] = tuple(self._card(ref, each) for each in claim.results)
            except DraError as error:
                found[ref.uid] = error
        return found

    def unprepare(self, refs: Sequence[ClaimRef], *, within_s: float | None = None) -> Mapping[ClaimUid, None]:  # noqa: ARG002 - the interface of `handlers`
        with self._cards_lock:
            for ref in refs:
                self.prepared.pop(ref.uid, None)
        return dict.fromkeys(ref.uid for ref in refs)

    def _card(self, ref: ClaimRef, wanted: AllocatedDevice) -> PreparedDevice:
        users = [uid for uid, held in self.prepared.items() if wanted.device in [card.device for card in held]]
        if wanted.device not in [card.name for card in self._cards]:
            raise ClaimError(f"claim {ref}: this node has no network card {wanted.device}: delete the pod")
        if any(uid != ref.uid for uid in users):
            raise ClaimError(f"claim {ref}: network card {wanted.device} is prepared for claim {users[0]}")
        return PreparedDevice(
            request_names=(wanted.base_request,), pool=wanted.pool, device=wanted.device, cdi_device_ids=()
        )

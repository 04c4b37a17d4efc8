"""A real node process that gives the NVIDIA driver up: which device files it has open, and what it asks of the API."""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from dra_driver.kube.rest import RestClient
from tests.contract.node.process.processes import NODE, Node, devices
from tests.fakes.driver_root import debian
from tests.fakes.nvml import library
from tests.fakes.nvml.state import ENVIRONMENT, State
from tests.fakes.recording_proxy import RecordingProxy
from tests.harness.servers import free_port

SPEC: NodeSpec = replace(parse_groups("2xl4-24gb", "node-a"), driver_version="570.172.08")
NEW_SPEC = replace(SPEC, driver_version="580.105.08")
OTHER_RELEASE = "FAKE_NVML_STATE_OF_THE_NEW_DRIVER"
NVML = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
ANNOTATION = "gpu.dra-driver.io/detach"
OPEN = {"nvidiactl", "nvidia0", "nvidia1"}


class Driver:
    """A driver root whose NVML is the stand-in, and a second release of it that can replace the first."""

    def __init__(self, folder: Path) -> None:
        self.root = debian(folder / "root")
        self._builds, self._states = [folder / "old", folder / "new"], [folder / "state-old", folder / "state-new"]
        for path in (*self._builds, *self._states):
            path.mkdir()
        self.old = State.create(self._states[0] / "state", SPEC)
        self.new = State.create(self._states[1] / "state", NEW_SPEC)
        self._libraries = [library.build(self._builds[0]), library.build(self._builds[1], OTHER_RELEASE)]
        self._install(self._libraries[0])

    def upgrade(self) -> None:
        self._install(self._libraries[1])

    def close(self) -> None:
        self.old.close()
        self.new.close()

    def _install(self, built: Path) -> None:
        path = self.root.path / NVML
        path.unlink(missing_ok=True)
        shutil.copy(built, path)

    @property
    def environ(self) -> dict[str, str]:
        return {ENVIRONMENT: str(self.old.path), OTHER_RELEASE: str(self.new.path)}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    reason = library.reason_why_not()
    if reason is not None:
        pytest.skip(reason)
    made = Driver(tmp_path)
    yield made
    made.close()


@pytest.fixture
def process(node: Callable[..., Node], driver: Driver) -> Node:
    return node(
        simulate=None,
        driver_root=str(driver.root.path),
        proc_devices=driver.root.proc_devices,
        nvidia_cdi_hook_path="none",
        poll_interval="0.2",
        environ=driver.environ,
    )


def annotate(rest: RestClient, reason: str | None) -> None:
    rest.merge_patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {ANNOTATION: reason}}})


def metric(process: Node, name: str) -> str:
    return next(line.split()[-1] for line in process.metrics().splitlines() if line.startswith(f"{name} "))


def test_every_device_file_is_closed_and_the_next_drivers_are_opened(
    rest: RestClient, driver: Driver, process: Node
) -> None:
    """With one of them open the kernel module cannot be unloaded, and the library of the old release would stay."""
    process.start()
    process.wait_for(lambda: driver.old.opened() == OPEN and devices(rest) == ["gpu-0", "gpu-1"])
    annotate(rest, "driver 580.105.08")
    process.wait_for(lambda: driver.old.opened() == set())
    process.wait_for(lambda: metric(process, "dra_driver_detached") == "1.0")
    said = f"detached from the NVIDIA driver (annotation {ANNOTATION} of node {NODE}: driver 580.105.08)"
    assert said in process.ready()[1]
    assert devices(rest) == ["gpu-0", "gpu-1"]
    driver.upgrade()
    begun = driver.old.calls("nvmlInitWithFlags")
    annotate(rest, None)
    process.wait_for(lambda: driver.new.opened() == OPEN)
    assert (driver.old.opened(), driver.old.calls("nvmlInitWithFlags")) == (set(), begun)
    process.wait_for(lambda: metric(process, "dra_driver_detached") == "0.0")
    process.wait_for(lambda: "NVIDIA driver up" not in process.ready()[1])


def test_a_process_that_starts_under_a_request_never_opens_the_driver(
    rest: RestClient, driver: Driver, process: Node
) -> None:
    annotate(rest, "an upgrade")
    process.start()
    process.wait_for(lambda: "detached from the NVIDIA driver" in process.ready()[1])
    process.wait_for(process.registration.exists)
    time.sleep(0.5)  # a few polls
    assert driver.old.calls("nvmlInitWithFlags") == 0
    annotate(rest, None)
    process.wait_for(lambda: driver.old.opened() == OPEN)


def test_a_file_is_enough_without_an_api_server(driver: Driver, process: Node, tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    text = Path(str(process.flags["kubeconfig"])).read_text()
    kubeconfig.write_text(
        text.replace(text.partition("127.0.0.1:")[2].partition('"')[0].split("\n")[0], str(free_port()))
    )
    process.flags["kubeconfig"] = str(kubeconfig)
    process.start()
    process.wait_for(lambda: driver.old.opened() == OPEN)
    process.wait_for(lambda: "starting" not in process.ready()[1])  # a file from before is seen by the start itself
    time.sleep(0.3)
    file = process.dra.parent / "detach"
    file.write_text("cable work\n")
    process.wait_for(lambda: driver.old.opened() == set())
    process.wait_for(lambda: f"detached from the NVIDIA driver (file {file}: cable work)" in process.ready()[1])
    file.unlink()
    process.wait_for(lambda: driver.old.opened() == OPEN)


@pytest.mark.slow
def test_two_processes_of_a_rolling_update_both_detach(
    rest: RestClient, driver: Driver, process: Node, node: Callable[..., Node]
) -> None:
    flags = {name: value for name, value in process.flags.items() if name not in ("http_addr", "pod_uid")}
    pair = [
        node(**flags, pod_uid=f"b1c7e0f2-5d0a-4c61-9f7e-0f6f0a8c1d2{number}", environ=driver.environ)
        for number in range(2)
    ]
    for each in pair:
        each.start()
        each.wait_for(lambda: each.text.count("GPU inventory changed") == pair.index(each) + 1)  # noqa: B023
    annotate(rest, "driver 580")
    pair[0].wait_for(lambda: driver.old.opened() == set())
    pair[0].wait_for(lambda: pair[0].text.count("detached from the NVIDIA driver by") == 2)
    annotate(rest, None)
    pair[0].wait_for(lambda: pair[0].text.count("reattached to the NVIDIA driver") == 2)


WATCHED = ["/api/v1/nodes", "/apis/gpu.dra-driver.io/v1alpha1/gpupolicies", "/apis/resource.k8s.io/v1/resourceslices"]


def test_a_node_at_rest_asks_the_api_server_nothing(
    rest: RestClient, node: Callable[..., Node], kubeconfig: str, tmp_path: Path
) -> None:
    """Its three watches are open; thousands of nodes that poll would be a load of their own."""
    with RecordingProxy(Path(kubeconfig)) as proxy:
        process = node(kubeconfig=str(proxy.kubeconfig(tmp_path / "proxied"))).start()

        process.wait_for(lambda: len(devices(rest)) > 0)
        process.wait_for(lambda: len(watches(proxy)) == len(WATCHED))
        seen = [len(proxy.requests)]
        while len(seen) < 2 or (seen[-1] != seen[-2] and len(seen) < 6):  # the first rounds may see the start
            time.sleep(3.0)
            seen.append(len(proxy.requests))
        assert seen[-1] == seen[-2], proxy.requests[seen[0] :]
        assert sorted(watches(proxy)) == WATCHED


def watches(proxy: RecordingProxy) -> list[str]:
    return [url.partition("?")[0] for _, url in proxy.requests if "watch=true" in url]

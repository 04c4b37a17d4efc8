"""The health of GPUs through a whole node process: faults of simulated GPUs in, slices, streams and events out."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube.rest import RestClient
from tests.contract.node.process.processes import DRIVER, NODE, Node, claim_maker, devices, events, taints
from tests.fakes.kubelet import dial, watch_health
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.claims_api import CLAIMS, NAMESPACE

Start = Callable[..., Node]
SPEC = "2xh100-sxm5-80gb"
UNHEALTHY = 2


@pytest.fixture
def hardware(folder: Path) -> SimulatedBackend:
    plugin_dir = folder / "plugins" / DRIVER
    plugin_dir.mkdir(parents=True, exist_ok=True)
    return SimulatedBackend.from_spec(SPEC, NODE, state_file=plugin_dir / "simulated-gpus.json")


def uuid(hardware: SimulatedBackend, minor: int) -> GpuUuid:
    return next(gpu.uuid for gpu in hardware.snapshot().gpus if gpu.minor == minor)


def keys(rest: RestClient) -> dict[str, set[str]]:
    return {name: {taint["key"] for taint in found} for name, found in taints(rest).items()}


def told(stream: Any, device: str, *, state: int) -> str:
    for message in stream:
        for each in message.devices:
            if (each.device.device_name, each.health) == (device, state):
                return str(each.message)
    raise AssertionError("the stream ended")


@pytest.fixture
def policies(folder: Path) -> str:
    (folder / "policies").mkdir()
    spec = {"priority": 1, "health": {"calmSeconds": 1, "evict": {"causes": ["lost"]}}}
    policy = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "p"}, "spec": spec}
    (folder / "policies" / "p.json").write_text(json.dumps(policy))
    return str(folder / "policies")


def prepared(rest: RestClient, process: Node, number: int = 0) -> dict[str, str]:
    claim = claim_maker(rest).make(number)
    answer = process.prepare(claim)
    assert answer.devices, answer.error
    return claim


def test_a_claim_and_its_pods_hear_of_the_end_of_their_gpu_where_asked(
    rest: RestClient, node: Start, hardware: SimulatedBackend
) -> None:
    process = node(claim_events="true").start()
    process.wait_for(lambda: {"gpu-0", "gpu-1"} < set(devices(rest)))
    process.register()
    mine, _ = prepared(rest, process, 0), prepared(rest, process, 1)
    path = f"{CLAIMS}/{mine['name']}"
    claim = rest.get(path)
    claim["status"]["reservedFor"] = [{"resource": "pods", "name": "trainer", "uid": "pod-uid"}]
    rest.update(f"{path}/status", claim)
    hardware.inject(uuid(hardware, 0), "xid=48")

    def said(kind: str) -> set[str]:
        items = rest.list(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        about = {"ResourceClaim": mine["name"], "Pod": "trainer"}
        assert all(each["involvedObject"]["name"] == about[each["involvedObject"]["kind"]] for each in items)
        return {
            e["message"] for e in items if e["involvedObject"]["kind"] == kind and "nvidia.com/xid)" in e["message"]
        }

    def on_the_node() -> set[str]:
        return {text for text in events(rest, "GpuUnhealthy") if "nvidia.com/xid)" in text}

    process.wait_for(lambda: said("Pod") == said("ResourceClaim") == on_the_node() != set())


def test_an_error_of_a_gpu_is_a_taint_a_message_an_event_and_a_metric(
    rest: RestClient, node: Start, hardware: SimulatedBackend
) -> None:
    process = node().start()
    process.wait_for(lambda: {"gpu-0", "gpu-1"} < set(devices(rest)))
    process.register()
    process.wait_for(lambda: 'dra_driver_gpu_health{device="gpu-0",state="healthy"} 1.0' in process.metrics())
    with dial(process.dra) as channel:
        stream = watch_health(channel, "v1alpha1")
        hardware.inject(uuid(hardware, 0), "xid=48")
        process.wait_for(lambda: "gpu.nvidia.com/xid" in keys(rest).get("gpu-0", ()))
        found = taints(rest)
        assert all(name == "gpu-0" or name.startswith("gpu-0-mig-") for name in found)
        assert len(found) > 20, "its partitions too"
        (xid,) = [taint for taint in found["gpu-0"] if taint["key"] == "gpu.nvidia.com/xid"]
        assert (xid["value"], xid["effect"]) == ("48", "NoSchedule")
        assert "48" in told(stream, "gpu-0", state=UNHEALTHY)
    process.wait_for(lambda: any("gpu-0 is" in text for text in events(rest, "GpuUnhealthy")))
    process.wait_for(lambda: 'dra_driver_gpu_conditions{cause="xid"} 1.0' in process.metrics())
    assert 'dra_driver_gpu_xids_total{device="gpu-0",xid="48"} 1.0' in process.metrics()
    assert 'dra_driver_gpu_health{device="gpu-1",state="healthy"} 1.0' in process.metrics()
    process.wait_for(lambda: process.ready()[0] == 200)
    assert "gpu-0 is unhealthy" in process.ready()[1]


def test_a_lost_gpu_stays_published_also_over_a_restart_and_comes_back_as_the_same_device(
    rest: RestClient, node: Start, hardware: SimulatedBackend, policies: str
) -> None:
    process = node(policy_dir=policies).start()
    process.wait_for(lambda: {"gpu-0", "gpu-1"} < set(devices(rest)))
    before, first = set(devices(rest)), uuid(hardware, 0)
    hardware.inject(first, "lost")
    # Until the policy has judged why it is missing, it only gets no new claims.
    process.wait_for(lambda: {taint["effect"] for taint in taints(rest).get("gpu-0", ())} == {"NoExecute"})
    assert set(devices(rest)) == before
    found = taints(rest)
    state = process.dra.with_name("health.json")
    process.wait_for(lambda: '"evict"' in state.read_text())
    process.end(signal.SIGKILL)
    again = node(policy_dir=policies).start()
    again.wait_for(lambda: 'dra_driver_gpu_health{device="gpu-0",state="evict"} 1.0' in again.metrics())
    again.wait_for(lambda: "dra_driver_published 1.0" in again.metrics(), timeout_s=60.0)
    assert taints(rest) == found, "with the time at which it began"
    assert set(devices(rest)) == before
    hardware.recover(first)
    again.wait_for(lambda: keys(rest) == {}, timeout_s=60.0)
    assert set(devices(rest)) == before
    assert uuid(hardware, 0) == first


def test_with_health_off_streams_are_silent_and_a_lost_gpu_is_withdrawn(
    rest: RestClient, node: Start, hardware: SimulatedBackend
) -> None:
    process = node(health="false").start()
    process.wait_for(lambda: {"gpu-0", "gpu-1"} < set(devices(rest)))
    with dial(process.dra) as channel:
        stream = watch_health(channel, "v1")
        hardware.inject(uuid(hardware, 0), "lost")
        process.wait_for(lambda: "gpu-0" not in devices(rest))
        assert process.end()[0] == 0
        assert list(stream) == []
    assert taints(rest) == {}

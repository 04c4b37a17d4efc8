"""Checks of the driver's ResourceSlices: present, complete, current, and with devices that claims can get."""

from collections.abc import Iterator, Mapping
from typing import Final

from dra_driver.core.finding import Finding, Layer, check, fail, ok, warn
from dra_driver.core.model.gpu_node import PublishedForm
from dra_driver.diagnose.doctor.driver_view import (
    driver_names,
    gpu_nodes,
    node_daemonsets,
    nodes_with_ready_pods,
    own_devices,
    own_slices,
    plugin_offers,
    shown,
)
from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.diagnose.doctor.wire import Wire, dicts, name_of, number, text

_BLOCKING: Final = ("NoSchedule", "NoExecute")


@check("slices-present", Layer.SLICES, "the ResourceSlices of nodes")
def _present(facts: ClusterFacts) -> Iterator[Finding]:
    slices = own_slices(facts)
    devices = own_devices(facts)
    known = facts.knows("driver-pods") and facts.knows("daemonsets")
    wanted = nodes_with_ready_pods(facts) if known else set(gpu_nodes(facts))
    missing = sorted(node for node in wanted if not devices.get(node))
    offered = {name_of(node) for node in facts.items_or_none("nodes") if plugin_offers(node)}
    for node in missing:
        told = gpu_nodes(facts).get(node)
        if (told is not None and not told.gpus) or node in offered:
            continue  # said by the layers before
        yield fail(
            "its node process runs, and no ResourceSlice of the node has a device",
            f"ResourceSlices of {shown(driver_names(facts))} for this node",
            "The kubelet deletes the ResourceSlices of a driver that is not registered; see /readyz of the pod and "
            "kubectl get events -n default for ResourceSliceProblem.",
            f"node/{node}",
        )
    if not slices and not wanted and not known:
        yield fail(
            f"no ResourceSlice of driver {shown(driver_names(facts))}",
            "ResourceSlices for each node with GPUs",
            "Run kubectl dra doctor against the cluster: a snapshot does not tell why.",
            "cluster",
        )
    if slices and not missing:
        count = sum(map(len, devices.values()))
        yield ok(f"{count} devices of {len([node for node in devices if node])} nodes are published", "cluster")


@check("pools-complete", Layer.SLICES, "that pools are complete")
def _pools(facts: ClusterFacts) -> Iterator[Finding]:
    pools: dict[tuple[str, str], list[Wire]] = {}
    for item in own_slices(facts):
        pools.setdefault((text(item, "spec", "driver"), text(item, "spec", "pool", "name")), []).append(item)
    for (_, pool), items in sorted(pools.items()):
        newest = max(number(item, "spec", "pool", "generation") for item in items)
        current = [item for item in items if number(item, "spec", "pool", "generation") == newest]
        old = [item for item in items if item not in current]
        expected = max(number(item, "spec", "pool", "resourceSliceCount") for item in current)
        if len(current) != expected:
            yield fail(
                f"{len(current)} of {expected} ResourceSlices of generation {newest} are there, so the scheduler "
                "uses none",
                "all ResourceSlices of the newest generation",
                "The node process completes it within seconds while it runs; where it does not, look at its "
                "log, at a "
                "ResourceQuota for resourceslices, and at who deletes them.",
                f"pool/{pool}",
            )
        elif old:
            yield warn(
                f"{len(old)} ResourceSlices are of an older generation than {newest}",
                "one generation",
                "The node process deletes them; if they stay, another client writes to this pool.",
                f"pool/{pool}",
            )


@check("slices-of-missing-nodes", Layer.SLICES, "ResourceSlices of nodes that are gone")
def _orphans(facts: ClusterFacts) -> Iterator[Finding]:
    nodes = {name_of(node) for node in facts.items("nodes")}
    gone = sorted(
        {node for item in own_slices(facts) if (node := text(item, "spec", "nodeName")) and node not in nodes}
    )
    if gone and nodes:
        yield warn(
            f"ResourceSlices of nodes that do not exist: {shown(gone)}",
            "ResourceSlices that end with their Node",
            "kubectl delete resourceslices --field-selector spec.nodeName=NAME",
            "cluster",
        )


@check("slices-without-node-process", Layer.SLICES, "that published devices can be prepared")
def _without_process(facts: ClusterFacts) -> Iterator[Finding]:
    """Devices that can be allocated although no node process can prepare them."""
    if not node_daemonsets(facts):
        return  # node processes run otherwise, as in the embedded cluster
    running = nodes_with_ready_pods(facts)
    devices = own_devices(facts)
    nodes = {name_of(node) for node in facts.items_or_none("nodes")} or set(devices)
    left = sorted(node for node, found in devices.items() if node in nodes and found and node not in running)
    for node in left:
        yield fail(
            f"{len(devices[node])} devices are published, but no node process is ready there to prepare them",
            "a ready node process on the node",
            "See the layers daemonset and node for why it does not run; claims that the scheduler allocates "
            "there wait.",
            f"node/{node}",
        )


@check("devices-tainted", Layer.SLICES, "taints of devices")
def _taints(facts: ClusterFacts) -> Iterator[Finding]:
    for node, devices in sorted(own_devices(facts).items()):
        keys: dict[str, int] = {}
        tainted = 0
        for device in devices:
            if "taints" not in device:
                continue
            found = [taint for taint in dicts(device, "taints") if text(taint, "effect") in _BLOCKING]
            tainted += bool(found)
            for taint in found:
                words = text(taint, "key") + (f"={text(taint, 'value')}" if text(taint, "value") else "")
                keys[words] = keys.get(words, 0) + 1
        if tainted and tainted == len(devices):
            yield warn(
                f"all {tainted} devices are tainted: {shown(sorted(keys))}",
                "devices that new claims can get",
                "A drain ends with kubectl dra undrain; health taints end with their cause (docs/health.md); "
                "a policy's "
                "taint with its policy.",
                f"node/{node}",
            )


@check("forms-published", Layer.SLICES, "that partitions and shares are published")
def _forms(facts: ClusterFacts) -> Iterator[Finding]:
    """Partitions or shares that a node means to offer and that are not in its slices: a gate drops their fields."""
    devices = own_devices(facts)
    for node, status in gpu_nodes(facts).items():
        offered = {form for gpu in status.gpus for form in gpu.offered_as}
        published = devices.get(node)
        if not published:
            continue
        lost = []
        if PublishedForm.PARTITIONS in offered and all(_attribute(device, "type") != "mig" for device in published):
            lost.append(("MIG partitions", "DRAPartitionableDevices"))
        if PublishedForm.SHARED in offered and not any(device.get("allowMultipleAllocations") for device in published):
            lost.append(("shares", "DRAConsumableCapacity"))
        for what, gate in lost:
            yield warn(
                f"its policies allow {what}, and none is published",
                f"an API server that keeps the fields of {what} (feature gate {gate}; on from 1.36)",
                f"Turn {gate} on in the API server, scheduler and kubelets, or change the policy.",
                f"node/{node}",
                layer=Layer.KUBERNETES,
            )


def _attribute(device: Mapping[str, object], name: str) -> str:
    return text(device, "attributes", name, "string")


CHECKS: Final = (_present, _without_process, _pools, _orphans, _taints, _forms)

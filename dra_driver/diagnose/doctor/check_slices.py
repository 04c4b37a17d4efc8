"""Checks of the driver's ResourceSlices: present, complete, current, and with devices that claims can get."""

from collections.abc import Iterator, Mapping
from typing import Final

from dra_driver.core.model.gpu_node import PublishedForm
from dra_driver.diagnose.doctor.check import LayerCheck
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
from dra_driver.diagnose.doctor.finding import FindingStatus, Layer, LayerFinding
from dra_driver.diagnose.doctor.wire import Wire, dicts, name_of, number, text

_BLOCKING: Final = ("NoSchedule", "NoExecute")


def _present(facts: ClusterFacts) -> Iterator[LayerFinding]:
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
        yield PRESENT.finding(
            FindingStatus.FAIL,
            f"node/{node}",
            "its node process runs, and no ResourceSlice of the node has a device",
            expected=f"ResourceSlices of {shown(driver_names(facts))} for this node",
            do="The kubelet deletes the ResourceSlices of a driver that is not registered; see /readyz of the pod and "
            "kubectl get events -n default for ResourceSliceProblem.",
        )
    if not slices and not wanted and not known:
        yield PRESENT.finding(
            FindingStatus.FAIL,
            "cluster",
            f"no ResourceSlice of driver {shown(driver_names(facts))}",
            expected="ResourceSlices for each node with GPUs",
            do="Run kubectl dra doctor against the cluster: a snapshot does not tell why.",
        )
    if slices and not missing:
        count = sum(map(len, devices.values()))
        yield PRESENT.finding(
            FindingStatus.OK,
            "cluster",
            f"{count} devices of {len([node for node in devices if node])} nodes are published",
        )


def _pools(facts: ClusterFacts) -> Iterator[LayerFinding]:
    pools: dict[tuple[str, str], list[Wire]] = {}
    for item in own_slices(facts):
        pools.setdefault((text(item, "spec", "driver"), text(item, "spec", "pool", "name")), []).append(item)
    for (_, pool), items in sorted(pools.items()):
        newest = max(number(item, "spec", "pool", "generation") for item in items)
        current = [item for item in items if number(item, "spec", "pool", "generation") == newest]
        old = [item for item in items if item not in current]
        expected = max(number(item, "spec", "pool", "resourceSliceCount") for item in current)
        if len(current) != expected:
            yield POOLS.finding(
                FindingStatus.FAIL,
                f"pool/{pool}",
                f"{len(current)} of {expected} ResourceSlices of generation {newest} are there, so the scheduler "
                "uses none",
                expected="all ResourceSlices of the newest generation",
                do="The node process completes it within seconds while it runs; where it does not, look at its "
                "log, at a "
                "ResourceQuota for resourceslices, and at who deletes them.",
            )
        elif old:
            yield POOLS.finding(
                FindingStatus.WARN,
                f"pool/{pool}",
                f"{len(old)} ResourceSlices are of an older generation than {newest}",
                expected="one generation",
                do="The node process deletes them; if they stay, another client writes to this pool.",
            )


def _orphans(facts: ClusterFacts) -> Iterator[LayerFinding]:
    nodes = {name_of(node) for node in facts.items("nodes")}
    gone = sorted(
        {node for item in own_slices(facts) if (node := text(item, "spec", "nodeName")) and node not in nodes}
    )
    if gone and nodes:
        yield ORPHANS.finding(
            FindingStatus.WARN,
            "cluster",
            f"ResourceSlices of nodes that do not exist: {shown(gone)}",
            expected="ResourceSlices that end with their Node",
            do="kubectl delete resourceslices --field-selector spec.nodeName=NAME",
        )


def _without_process(facts: ClusterFacts) -> Iterator[LayerFinding]:
    """Devices that can be allocated although no node process can prepare them."""
    if not node_daemonsets(facts):
        return  # node processes run otherwise, as in the embedded cluster
    running = nodes_with_ready_pods(facts)
    devices = own_devices(facts)
    nodes = {name_of(node) for node in facts.items_or_none("nodes")} or set(devices)
    left = sorted(node for node, found in devices.items() if node in nodes and found and node not in running)
    for node in left:
        yield WITHOUT_PROCESS.finding(
            FindingStatus.FAIL,
            f"node/{node}",
            f"{len(devices[node])} devices are published, but no node process is ready there to prepare them",
            expected="a ready node process on the node",
            do="See the layers daemonset and node for why it does not run; claims that the scheduler allocates "
            "there wait.",
        )


def _taints(facts: ClusterFacts) -> Iterator[LayerFinding]:
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
            yield TAINTS.finding(
                FindingStatus.WARN,
                f"node/{node}",
                f"all {tainted} devices are tainted: {shown(sorted(keys))}",
                expected="devices that new claims can get",
                do="A drain ends with kubectl dra undrain; health taints end with their cause (docs/health.md); "
                "a policy's "
                "taint with its policy.",
            )


def _forms(facts: ClusterFacts) -> Iterator[LayerFinding]:
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
            yield FORMS.finding(
                FindingStatus.WARN,
                f"node/{node}",
                f"its policies allow {what}, and none is published",
                expected=f"an API server that keeps the fields of {what} (feature gate {gate}; on from 1.36)",
                do=f"Turn {gate} on in the API server, scheduler and kubelets, or change the policy.",
                layer=Layer.KUBERNETES,
            )


def _attribute(device: Mapping[str, object], name: str) -> str:
    return text(device, "attributes", name, "string")


PRESENT: Final = LayerCheck[ClusterFacts](
    name="slices-present", layer=Layer.SLICES, about="the ResourceSlices of nodes", look=_present
)
POOLS: Final = LayerCheck[ClusterFacts](
    name="pools-complete", layer=Layer.SLICES, about="that pools are complete", look=_pools
)
ORPHANS: Final = LayerCheck[ClusterFacts](
    name="slices-of-missing-nodes", layer=Layer.SLICES, about="ResourceSlices of nodes that are gone", look=_orphans
)
WITHOUT_PROCESS: Final = LayerCheck[ClusterFacts](
    name="slices-without-node-process",
    layer=Layer.SLICES,
    about="that published devices can be prepared",
    look=_without_process,
)
TAINTS: Final = LayerCheck[ClusterFacts](
    name="devices-tainted", layer=Layer.SLICES, about="taints of devices", look=_taints
)
FORMS: Final = LayerCheck[ClusterFacts](
    name="forms-published", layer=Layer.SLICES, about="that partitions and shares are published", look=_forms
)
CHECKS: Final = (PRESENT, WITHOUT_PROCESS, POOLS, ORPHANS, TAINTS, FORMS)

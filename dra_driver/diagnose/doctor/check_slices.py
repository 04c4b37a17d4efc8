"""Check the driver's ResourceSlices, and search for a second publisher, which could give a GPU to a second pod."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, ok, warn
from dra_driver.core.model.gpu_node import PublishedForm
from dra_driver.core.text import listed
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.check_nodes import why_left_out
from dra_driver.diagnose.doctor.views import (
    plugin_offers,
)
from dra_driver.kube.state import Wire

_NVIDIA_IMAGES: Final = ("k8s-dra-driver-gpu", "dra-driver-nvidia-gpu", "k8s-dra-driver")
"""Parts of the image names of NVIDIA's DRA driver, old and new."""


@check("device-plugin", Layer.SECOND_PUBLISHER, "device plugins on nodes of the driver")
def _device_plugin(facts: fact.ClusterFacts) -> Iterator[Finding]:
    wanted = facts.driver_nodes
    own = facts.node_daemonsets if facts.knows(fact.DAEMONSETS) else []
    allowed = bool(own) and all(fact.setting(item, "ALLOW_SECOND_PUBLISHER") == "true" for item in own)
    found = [(node, offers) for node in facts.items("nodes") if (offers := plugin_offers(node))]
    for node, offers in found:
        if fact.name_of(node) not in wanted:
            continue
        withdrawn = "" if allowed else "; the node process withdraws its devices while the plugin runs"
        yield finding(
            Status.WARN if allowed else Status.FAIL,
            f"a device plugin and this driver both publish {listed(offers)}{withdrawn}",
            "one publisher per node",
            "Keep one of them off the node: remove the device plugin with the label "
            "nvidia.com/gpu.deploy.device-plugin=false (GPU Operator) or its node selector, or exclude the node from "
            "the driver's DaemonSet. kubectl dra migrate helps to move workloads.",
            fact.subject_of("node", node),
        )
    if not any(fact.name_of(node) in wanted for node, _ in found):
        elsewhere = [fact.name_of(node) for node, _ in found]
        seen = f"no node of the driver has a device plugin{f'; it is on {listed(elsewhere)}' if elsewhere else ''}"
        yield ok(seen, "cluster")


@check("two-installations", Layer.SECOND_PUBLISHER, "a second installation")
def _two_installations(facts: fact.ClusterFacts) -> Iterator[Finding]:
    found = [item for item in facts.node_daemonsets if fact.number(item, "status", "desiredNumberScheduled") > 0]
    if len(found) < 2:
        return
    names = {fact.driver_name(item) for item in found}
    how = "under one name" if len(names) == 1 else f"under the names {listed(sorted(names))}"
    places = listed([fact.subject_of("daemonset", item) for item in found])
    seen = f"the driver is installed {len(found)} times {how}: {places}"
    do = "Remove all but one: helm uninstall, or kubectl delete of the DaemonSet."
    yield fail(seen, "one installation per cluster", do, "cluster")


@check("nvidias-dra-driver", Layer.SECOND_PUBLISHER, "NVIDIA's DRA driver")
def _nvidias_driver(facts: fact.ClusterFacts) -> Iterator[Finding]:
    own = facts.node_daemonsets
    names = [fact.driver_name(item) for item in own]
    for item in facts.items(fact.DAEMONSETS):
        images = fact.at(item, "spec", "images")
        if not isinstance(images, list) or not any(part in str(image) for image in images for part in _NVIDIA_IMAGES):
            continue
        both = [
            fact.name_of(node)
            for node in facts.items_or_none("nodes")
            if why_left_out(item, node) == "" and any(why_left_out(each, node) == "" for each in own)
        ]
        if own and both and fact.DRIVER_NAME in names:
            seen = f"NVIDIA's DRA driver runs on the same nodes under the same name {fact.DRIVER_NAME}: {listed(both)}"
            do = (
                "Separate the drivers by node labels, or install NVIDIA's for ComputeDomains only "
                "(resources.gpus.enabled=false of its chart)."
            )
            yield fail(seen, "one driver of a name per node", do, fact.subject_of("daemonset", item))


@check("foreign-pools", Layer.SECOND_PUBLISHER, "pools of another driver of this name")
def _foreign_pool(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report two pools of one driver name on a node: the scheduler allocates from both."""
    pools: dict[tuple[str, str], set[str]] = {}
    names: Sequence[str] = facts.driver_names
    for item in facts.items("slices"):
        driver, node = fact.text(item, "spec", "driver"), fact.text(item, "spec", "nodeName")
        if driver in names and node:
            pools.setdefault((driver, node), set()).add(fact.text(item, "spec", "pool", "name"))
    for (driver, node), found in sorted(pools.items()):
        own = f"{node}/{driver}"
        others = sorted(found - {own})
        if others:
            seen = f"driver {driver} has ResourceSlices in pools that this driver does not use: {listed(others)}"
            do = (
                "Another driver of the same name publishes them, or has left them. Stop it, then kubectl delete "
                "resourceslices of those pools."
            )
            yield fail(seen, f"only the pool {own}", do, f"node/{node}")


@check("gpus-published-twice", Layer.SECOND_PUBLISHER, "GPUs in two pools")
def _same_gpus(facts: fact.ClusterFacts) -> Iterator[Finding]:
    by_place: dict[str, dict[str, list[Wire]]] = {}
    for item in facts.items("slices"):
        place = f"driver {fact.text(item, 'spec', 'driver')}, pool {fact.text(item, 'spec', 'pool', 'name')}"
        by_place.setdefault(fact.text(item, "spec", "nodeName"), {}).setdefault(place, []).append(item)
    for node, places in sorted(by_place.items()):
        if len(places) < 2:
            continue  # most nodes have one pool; skip their thousands of devices
        publishers: dict[str, list[str]] = {}
        for place, items in sorted(places.items()):
            for uuid in {found for item in items for found in _uuids(item)}:
                publishers.setdefault(uuid, []).append(place)
        counts = Counter("; ".join(offered_by) for offered_by in publishers.values() if len(offered_by) > 1)
        for pools, count in sorted(counts.items()):
            do = "Stop one of the drivers on this node; then delete its ResourceSlices."
            yield fail(f"{count} GPUs are published twice: {pools}", "each GPU in one pool", do, f"node/{node}")


def _uuids(item: Wire) -> set[str]:
    found: set[str] = set()
    for device in fact.dicts(item, "spec", "devices"):
        for name, value in fact.mapping(device, "attributes").items():
            if str(name).rpartition("/")[2] == "uuid":
                found.add(fact.text(value, "string"))
    return found - {""}


_BLOCKING: Final = ("NoSchedule", "NoExecute")


@check("slices-present", Layer.SLICES, "the ResourceSlices of nodes")
def _present(facts: fact.ClusterFacts) -> Iterator[Finding]:
    slices = facts.own_slices
    devices = facts.own_devices
    known = facts.knows("driver-pods") and facts.knows("daemonsets")
    wanted = facts.nodes_with_ready_pods if known else set(facts.gpu_nodes)
    missing = sorted(node for node in wanted if not devices.get(node))
    offered = {fact.name_of(node) for node in facts.items_or_none("nodes") if plugin_offers(node)}
    for node in missing:
        reported = facts.gpu_nodes.get(node)
        if (reported is not None and not reported.gpus) or node in offered:
            continue  # checks of lower layers report it
        yield fail(
            "its node process is ready, and no ResourceSlice of the node has a device",
            f"ResourceSlices of {listed(facts.driver_names)} for this node",
            "The kubelet deletes the ResourceSlices of a driver that is not registered; see /readyz of the pod and "
            "kubectl get events -n default for ResourceSliceProblem.",
            f"node/{node}",
            reason="NodeWithoutSlices",
        )
    if not slices and not wanted and not known:
        seen = f"no ResourceSlice of driver {listed(facts.driver_names)}"
        do = "Run kubectl dra doctor against the cluster: a snapshot does not contain the cause."
        yield fail(seen, "ResourceSlices for each node with GPUs", do, "cluster", reason="NoSlices")
    if slices and not missing:
        count = sum(map(len, devices.values()))
        yield ok(f"{count} devices of {len([node for node in devices if node])} nodes are published", "cluster")


@check("slices-without-node-process", Layer.SLICES, "a node process for each published device")
def _without_process(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report devices that the scheduler can allocate although no node process can prepare them."""
    if not facts.node_daemonsets:
        return  # node processes run without a DaemonSet, as in the embedded cluster
    running = facts.nodes_with_ready_pods
    devices = facts.own_devices
    nodes = {fact.name_of(node) for node in facts.items_or_none("nodes")} or set(devices)
    left = sorted(node for node, found in devices.items() if node in nodes and found and node not in running)
    for node in left:
        seen = f"{len(devices[node])} devices are published, but the node has no ready node process to prepare them"
        do = (
            "See the findings of the layers daemonset and node for the cause. Claims that the scheduler allocates on "
            "this node wait."
        )
        yield fail(seen, "a ready node process on the node", do, f"node/{node}")


@check("pools-complete", Layer.SLICES, "the completeness of pools")
def _pools(facts: fact.ClusterFacts) -> Iterator[Finding]:
    pools: dict[tuple[str, str], list[Wire]] = {}
    for item in facts.own_slices:
        pools.setdefault((fact.text(item, "spec", "driver"), fact.text(item, "spec", "pool", "name")), []).append(item)
    for (_, pool), items in sorted(pools.items()):
        newest = max(fact.number(item, "spec", "pool", "generation") for item in items)
        current = [item for item in items if fact.number(item, "spec", "pool", "generation") == newest]
        old = [item for item in items if item not in current]
        expected = max(fact.number(item, "spec", "pool", "resourceSliceCount") for item in current)
        if len(current) != expected:
            yield fail(
                f"only {len(current)} of {expected} ResourceSlices of generation {newest} exist, so the scheduler "
                "uses none",
                "all ResourceSlices of the newest generation",
                "A running node process completes the pool within seconds. Otherwise read its log, check for a "
                "ResourceQuota for resourceslices, and find out who deletes them.",
                f"pool/{pool}",
                reason="PoolIncomplete",
            )
        elif old:
            seen = f"{len(old)} ResourceSlices are of an older generation than {newest}"
            do = "The node process deletes them; if they stay, another client writes to this pool."
            yield warn(seen, "one generation", do, f"pool/{pool}", reason="OldGeneration")


@check("slices-of-missing-nodes", Layer.SLICES, "ResourceSlices of deleted nodes")
def _orphans(facts: fact.ClusterFacts) -> Iterator[Finding]:
    nodes = {fact.name_of(node) for node in facts.items("nodes")}
    gone = sorted(
        {node for item in facts.own_slices if (node := fact.text(item, "spec", "nodeName")) and node not in nodes}
    )
    if gone and nodes:
        seen = f"ResourceSlices of nodes that do not exist: {listed(gone)}"
        do = "kubectl delete resourceslices --field-selector spec.nodeName=NAME"
        yield warn(seen, "ResourceSlices that are deleted with their Node", do, "cluster")


@check("devices-tainted", Layer.SLICES, "taints of devices")
def _taints(facts: fact.ClusterFacts) -> Iterator[Finding]:
    for node, devices in sorted(facts.own_devices.items()):
        keys: dict[str, int] = {}
        tainted = 0
        for device in devices:
            if "taints" not in device:
                continue
            found = [taint for taint in fact.dicts(device, "taints") if fact.text(taint, "effect") in _BLOCKING]
            tainted += bool(found)
            for taint in found:
                words = fact.text(taint, "key") + (f"={fact.text(taint, 'value')}" if fact.text(taint, "value") else "")
                keys[words] = keys.get(words, 0) + 1
        if tainted and tainted == len(devices):
            seen = f"all {tainted} devices are tainted: {listed(sorted(keys))}"
            do = (
                "kubectl dra undrain ends a drain. Health taints end with their cause (docs/health.md), a policy's "
                "taint with its policy."
            )
            yield warn(seen, "devices that new claims can get", do, f"node/{node}")


@check("forms-published", Layer.SLICES, "the publication of partitions and shares")
def _forms(facts: fact.ClusterFacts) -> Iterator[Finding]:
    """Report partitions or shares that policies allow and slices lack: a disabled gate drops their fields."""
    devices = facts.own_devices
    for node, status in facts.gpu_nodes.items():
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
                f"its policies allow {what}, but none are published",
                f"an API server that keeps the fields of {what} (feature gate {gate}; on from 1.36)",
                f"Turn {gate} on in the API server, scheduler and kubelets, or change the policy.",
                f"node/{node}",
                layer=Layer.KUBERNETES,
            )


def _attribute(device: Mapping[str, object], name: str) -> str:
    return fact.text(device, "attributes", name, "string")

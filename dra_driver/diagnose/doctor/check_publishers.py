"""Checks for a second publisher: whatever else offers the GPUs of a node. Each could be given to two pods at once."""

from collections.abc import Iterator, Sequence
from typing import Final

from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, ok
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.check_nodes import why_left_out
from dra_driver.diagnose.doctor.driver_view import (
    driver_name,
    driver_names,
    driver_nodes,
    node_daemonsets,
    plugin_offers,
    setting,
    shown,
)
from dra_driver.diagnose.doctor.facts import DRIVER_NAME, NODE_DAEMONSET, ClusterFacts
from dra_driver.diagnose.doctor.wire import Wire, at, dicts, mapping, name_of, number, subject_of, text

_NVIDIA_IMAGES: Final = ("k8s-dra-driver-gpu", "dra-driver-nvidia-gpu", "k8s-dra-driver")
"""Parts of the image names of NVIDIA's own driver, old and new."""


@check("device-plugin", Layer.SECOND_PUBLISHER, "device plugins beside the driver")
def _device_plugin(facts: ClusterFacts) -> Iterator[Finding]:
    wanted = driver_nodes(facts)
    allowed = _is_allowed(facts)
    found = [(node, offers) for node in facts.items("nodes") if (offers := plugin_offers(node))]
    for node, offers in found:
        if name_of(node) not in wanted:
            continue
        withdrawn = "" if allowed else "; the node process withdraws its devices for as long"
        yield finding(
            Status.WARN if allowed else Status.FAIL,
            f"a device plugin offers {shown(offers)} beside this driver{withdrawn}",
            "one publisher per node",
            "Keep one of the two off the node: take the device plugin away with the label "
            "nvidia.com/gpu.deploy.device-plugin=false (GPU Operator) or its node selector, or keep the driver's "
            "DaemonSet "
            "off. kubectl dra migrate helps to move workloads.",
            subject_of("node", node),
        )
    if not any(name_of(node) in wanted for node, _ in found):
        elsewhere = [name_of(node) for node, _ in found]
        seen = f"no node of the driver has a device plugin{f'; it is on {shown(elsewhere)}' if elsewhere else ''}"
        yield ok(seen, "cluster")


def _is_allowed(facts: ClusterFacts) -> bool:
    daemonsets = [item for item in facts.items_or_none(fact.DAEMONSETS) if name_of(item) == NODE_DAEMONSET]
    return bool(daemonsets) and all(setting(item, "ALLOW_SECOND_PUBLISHER") == "true" for item in daemonsets)


@check("two-installations", Layer.SECOND_PUBLISHER, "a second installation")
def _two_installations(facts: ClusterFacts) -> Iterator[Finding]:
    found = [item for item in node_daemonsets(facts) if number(item, "status", "desiredNumberScheduled") > 0]
    if len(found) < 2:
        return
    names = {driver_name(item) for item in found}
    how = "under one name" if len(names) == 1 else f"under the names {shown(sorted(names))}"
    places = shown([subject_of("daemonset", item) for item in found])
    yield fail(
        f"the driver is installed {len(found)} times {how}: {places}",
        "one installation per cluster",
        "Remove all but one: helm uninstall, or kubectl delete of the DaemonSet.",
        "cluster",
    )


@check("nvidias-dra-driver", Layer.SECOND_PUBLISHER, "NVIDIA's own DRA driver")
def _nvidias_driver(facts: ClusterFacts) -> Iterator[Finding]:
    own = node_daemonsets(facts)
    names = [driver_name(item) for item in own]
    for item in facts.items(fact.DAEMONSETS):
        images = at(item, "spec", "images")
        if not isinstance(images, list) or not any(part in str(image) for image in images for part in _NVIDIA_IMAGES):
            continue
        both = [
            name_of(node)
            for node in facts.items_or_none("nodes")
            if why_left_out(item, node) == "" and any(why_left_out(each, node) == "" for each in own)
        ]
        if own and both and DRIVER_NAME in names:
            yield fail(
                f"NVIDIA's own DRA driver goes to the same nodes under the same name {DRIVER_NAME}: {shown(both)}",
                "one driver of a name per node",
                "Keep the two apart by node labels, or install theirs for ComputeDomains alone "
                "(resources.gpus.enabled=false of its chart).",
                subject_of("daemonset", item),
            )


@check("gpus-published-twice", Layer.SECOND_PUBLISHER, "GPUs in two pools")
def _same_gpus(facts: ClusterFacts) -> Iterator[Finding]:
    """The same UUID in two pools of one node."""
    publishers: dict[tuple[str, str], set[str]] = {}
    by_place: dict[str, dict[str, list[Wire]]] = {}
    for item in facts.items("slices"):
        place = f"driver {text(item, 'spec', 'driver')}, pool {text(item, 'spec', 'pool', 'name')}"
        by_place.setdefault(text(item, "spec", "nodeName"), {}).setdefault(place, []).append(item)
    for node, places in by_place.items():
        if len(places) > 1:  # most nodes have one pool, and their thousands of devices need no look
            for place, items in places.items():
                for uuid in {found for item in items for found in _uuids(item)}:
                    publishers.setdefault((node, uuid), set()).add(place)
    by_node: dict[tuple[str, tuple[str, ...]], int] = {}
    for (node, _), offered_by in publishers.items():
        if len(offered_by) > 1:
            key = (node, tuple(sorted(offered_by)))
            by_node[key] = by_node.get(key, 0) + 1
    for (node, pools), count in sorted(by_node.items()):
        yield fail(
            f"{count} GPUs are published twice: {'; '.join(pools)}",
            "each GPU in one pool",
            "Stop one of the two drivers on this node; then delete its ResourceSlices.",
            f"node/{node}",
        )


def _uuids(item: Wire) -> set[str]:
    found: set[str] = set()
    for device in dicts(item, "spec", "devices"):
        for name, value in mapping(device, "attributes").items():
            if str(name).rpartition("/")[2] == "uuid":
                found.add(text(value, "string"))
    return found - {""}


@check("foreign-pools", Layer.SECOND_PUBLISHER, "pools of another driver of this name")
def _foreign_pool(facts: ClusterFacts) -> Iterator[Finding]:
    """Two pools of one driver name on a node: the scheduler offers both."""
    pools: dict[tuple[str, str], set[str]] = {}
    names: Sequence[str] = driver_names(facts)
    for item in facts.items("slices"):
        driver, node = text(item, "spec", "driver"), text(item, "spec", "nodeName")
        if driver in names and node:
            pools.setdefault((driver, node), set()).add(text(item, "spec", "pool", "name"))
    for (driver, node), found in sorted(pools.items()):
        own = f"{node}/{driver}"
        others = sorted(found - {own})
        if others:
            yield fail(
                f"driver {driver} has ResourceSlices in pools that this driver does not use: {shown(others)}",
                f"the pool {own} alone",
                "Another driver of the same name publishes here, or has left them: stop it, then kubectl delete "
                "resourceslices of those pools.",
                f"node/{node}",
            )


CHECKS: Final = (_device_plugin, _two_installations, _nvidias_driver, _foreign_pool, _same_gpus)

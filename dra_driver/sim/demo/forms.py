"""A chapter of the demonstration: claims turn one H100 into a whole GPU, seven MIG devices, and three memory shares.

The ResourceSlices stay the same throughout; claims that exclude each other wait for each other.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dra_driver.core.errors import RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, utc_now
from dra_driver.sim.apiserver.kinds import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import WAIT_S, Say, make_pod, run_chapter
from dra_driver.sim.demo.expectations import why_unscheduled
from dra_driver.sim.demo.render import columns, table
from dra_driver.sim.objects import claim_names, is_ready

NODES: Final = {"gpu-x": "1xh100-sxm5-80gb"}
POLICY: Final = Path("examples/shared/mps.yaml")
NAMESPACE: Final = "demo-forms"
_SHARES: Final = {"share-10": ("10Gi", 20), "share-20": ("20Gi", 30), "share-30": ("30Gi", 40)}


def run(cluster: Cluster, say: Say) -> bool:
    """Run the chapter on a cluster of `NODES` with `POLICY`; returns whether everything went as expected."""
    say("--- one GPU in every form")
    problem = run_chapter(cluster, say, NAMESPACE, lambda: _play(cluster, say))
    if not problem:
        say("    The pods are deleted; no GPU instance, daemon, file or journal row is left.\n")
    return not problem


def _play(cluster: Cluster, say: Say) -> None:
    before = _versions(cluster)
    say(f"    The ResourceSlices describe it in every form at once:\n\n{_slices(cluster)}\n")
    say(f"    Its devices by kind:\n\n{_published(cluster)}\n")
    make_pod(cluster, NAMESPACE, "whole", _request("gpu.nvidia.com"))
    _await(cluster, ["whole"])
    mig_pods = [f"mig-{number}" for number in range(1, 9)]
    for name in mig_pods:
        make_pod(
            cluster,
            NAMESPACE,
            name,
            _request("mig.nvidia.com", 'device.attributes["gpu.nvidia.com"].profile == "1g.10gb"'),
        )
    _await_pending(cluster, mig_pods)
    say("1. A pod uses the whole GPU; pods for MIG devices wait.\n" + _account(cluster))
    _end(cluster, ["whole"])
    cluster.wait(lambda: _count_ready(cluster, mig_pods, 7), WAIT_S, "seven of eight pods with MIG devices to run")
    (late,) = (name for name in mig_pods if not is_ready(_pod(cluster, name)))
    make_pod(cluster, NAMESPACE, "whole-again", _request("gpu.nvidia.com"))
    _await_pending(cluster, [late, "whole-again"])
    say("2. The pod was deleted, and the driver created seven MIG devices. The eighth pod and a whole-GPU pod wait.")
    say(_account(cluster))
    _end(cluster, [late])
    _end(cluster, [name for name in mig_pods if name != late])
    _await(cluster, ["whole-again"])
    say(
        "3. The pods with MIG devices were deleted, and the driver switched MIG mode off: the GPU is whole again.\n"
        + _account(cluster)
    )
    _end(cluster, ["whole-again"])
    for name, (memory, percent) in _SHARES.items():
        make_pod(
            cluster,
            NAMESPACE,
            name,
            _request("gpu.nvidia.com", capacity={"memory": memory, "computePercent": str(percent)}),
        )
    _await(cluster, list(_SHARES))
    say("4. Three pods request parts of its memory and compute; an MPS daemon runs, with limits for each pod.")
    say(_account(cluster))
    if _versions(cluster) != before:
        raise RetryableError(f"the ResourceSlices changed: expected versions {before}, found {_versions(cluster)}")
    say(f"    The ResourceSlices did not change:\n\n{_slices(cluster)}\n")
    _end(cluster, list(_SHARES))


def _request(device_class: str, selector: str = "", capacity: dict[str, str] | None = None) -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": device_class}
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    if capacity:
        exactly["capacity"] = {"requests": capacity}
    return exactly


def _end(cluster: Cluster, names: Sequence[str]) -> None:
    for name in names:
        cluster.store.delete(PODS, name, NAMESPACE)


def _await(cluster: Cluster, names: Sequence[str]) -> None:
    cluster.wait(lambda: _count_ready(cluster, names, len(names)), WAIT_S, f"{', '.join(names)} to run")


def _await_pending(cluster: Cluster, names: Sequence[str]) -> None:
    def unreported() -> str | None:
        return next(
            (
                f"the scheduler has not rejected {name} yet"
                for name in names
                if not why_unscheduled(_pod(cluster, name))
            ),
            None,
        )

    cluster.wait(unreported, WAIT_S, "the scheduler to reject the pods that do not fit")


def _count_ready(cluster: Cluster, names: Sequence[str], wanted: int) -> str | None:
    ready = sum(is_ready(_pod(cluster, name)) for name in names)
    return None if ready >= wanted else f"{ready} of {wanted} run"


def _pod(cluster: Cluster, name: str) -> Obj:
    return cluster.store.get(PODS, name, NAMESPACE)


def _slices(cluster: Cluster) -> str:
    return "$ kubectl get resourceslices\n" + table(RESOURCE_SLICES, cluster.slices(), utc_now())


def _versions(cluster: Cluster) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in cluster.slices()}


def _published(cluster: Cluster) -> str:
    """Number of devices by kind, in the order in which the scheduler tries them."""
    rows = [["DEVICES", "TYPE", "PROFILE", "MEMORY", "SHARED", "EXCLUDED BY"]]
    counts: dict[tuple[str, ...], int] = {}
    for item in cluster.slices():
        for device in entries(item, "spec", "devices"):
            sets = ", ".join(str(use["counterSet"]) for use in entries(device, "consumesCounters")) or "-"
            shared = str(dig(device, "attributes", "sharingStrategy", "string", default="-"))
            profile = str(dig(device, "attributes", "profile", "string", default="-"))
            kind = str(dig(device, "attributes", "type", "string", default="-"))
            memory = str(dig(device, "capacity", "memory", "value", default="-"))
            key = (kind, profile, memory, shared, sets)
            counts[key] = counts.get(key, 0) + 1
    return columns(rows + [[str(count), *key] for key, count in counts.items()])


def _account(cluster: Cluster) -> str:
    """Every pod of the chapter with its allocated devices and its log, or the reason why it is pending."""
    lines: list[str] = []
    waiting: dict[str, list[str]] = {}
    for pod in cluster.store.list(PODS, NAMESPACE).items:
        name = pod["metadata"]["name"]
        if is_ready(pod):
            lines.append(f"    pod      {name}: Running with {', '.join(_allocated_devices(cluster, pod))}")
            log = cluster.client.log(NAMESPACE, name, "main")
            lines += [f"      log    {line}" for line in log.splitlines()]
        else:
            waiting.setdefault(why_unscheduled(pod), []).append(name)
    for reason, names in waiting.items():
        lines += [f"    pods     {', '.join(names)}: Pending", f"      reason {reason}"]
    return "\n".join(lines) + "\n"


def _allocated_devices(cluster: Cluster, pod: Obj) -> list[str]:
    found = []
    for _, claim_name in claim_names(pod):
        claim = cluster.store.find(RESOURCE_CLAIMS, claim_name, NAMESPACE) if claim_name else None
        for result in entries(claim, "status", "allocation", "devices", "results"):
            consumed = ", ".join(
                f"{key} {value}" for key, value in sorted((result.get("consumedCapacity") or {}).items())
            )
            share = f" ({consumed})" if consumed else ""
            found.append(f"{result['device']}{share}")
    return found

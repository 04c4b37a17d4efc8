"""The demonstration: run every example on two nodes with different GPUs. Examples that need other GPUs or policies
(`requirements`) run last, each group on its own cluster. Fails if an example misses its expectations or leaves
something behind."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dra_driver.core.errors import ConfigurationError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, utc_now
from dra_driver.sim.apiserver.kinds import NODES, RESOURCE_SLICES
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.demo import commands, forms, health, sevenths, shares
from dra_driver.sim.demo.chapter import Say, columns, table
from dra_driver.sim.demo.policies import PolicyChapter
from dra_driver.sim.demo.requirements import ClusterPool, Requirements, group_examples
from dra_driver.sim.demo.scenario import ExampleResult, Scenario
from dra_driver.sim.demo.usage import UsageChapter

NODES_OF_DEMO = {"gpu-a": "4xa100-sxm4-40gb", "gpu-b": "8xh100-sxm5-80gb"}
CLASSES = Path("deploy/base/deviceclasses.yaml")
EXAMPLES = Path("examples")


def run(root: Path, say: Say, *, nodes: dict[str, str] | None = None) -> bool:
    """Run the demonstration with the manifests below ``root``; returns whether all expectations were met. Raises
    ConfigurationError without manifests, RetryableError if the cluster does not start."""
    examples = sorted((root / EXAMPLES).glob("*.yaml"))
    if not examples or not (root / CLASSES).is_file():
        raise ConfigurationError(
            f"{root} has no {EXAMPLES}/*.yaml or no {CLASSES}: run this in a checkout of the project"
        )
    started = time.monotonic()
    groups = group_examples(examples)
    results: list[ExampleResult] = []
    with (
        UsageChapter(root, say) as usage,  # the first, because it takes as long as all others
        ClusterPool(nodes or NODES_OF_DEMO, lambda started_cluster: started_cluster.apply(root / CLASSES)) as pool,
    ):
        cluster = pool.cluster(Requirements())
        up_s = time.monotonic() - started
        say(f"The cluster with {len(cluster.nodes)} nodes runs, all GPUs are published ({up_s:.1f} s).\n")
        for kind in (NODES, RESOURCE_SLICES):
            say(f"$ kubectl get {kind.plural}\n{table(kind, cluster.store.list(kind).items, utc_now())}\n")
        say(_devices(cluster) + "\n")
        reported, ruled = _run_with_policy(cluster, groups.pop(Requirements(), []), say)
        results += reported
        usage.reported()
        problems = {"migrate": commands.migrate_manifest(cluster, root, say)}
        policy = root / health.POLICY
        cluster.set_policies([policy])  # nodes read it while the next chapter runs
        problems["explain"] = commands.explain_pending(cluster, say)
        problems["health"] = health.run(cluster, policy, say)
        say("Remaining CDI documents: one per node, shared by all of its containers")
        for node in cluster.nodes.values():
            say("\n".join(f"  {node.name}: {path.name}" for path in sorted(node.folders.cdi.iterdir())))
        for requirements, members in groups.items():
            begun = time.monotonic()
            cluster = pool.cluster(requirements)
            say(f"\nStarted another cluster: {requirements} ({time.monotonic() - begun:.1f} s).\n")
            results += run_examples(cluster, members, say)
        one_h100 = Requirements(nodes=tuple(forms.NODES.items()), policies=(root / forms.POLICY,))
        problems["forms"] = forms.run(pool.cluster(one_h100), say)
        one_t4 = Requirements(nodes=tuple(shares.NODES.items()), policies=(root / shares.POLICY,))
        problems["shares"] = shares.run(pool.cluster(one_t4), say)
        one_a100 = Requirements(nodes=tuple(sevenths.NODES.items()))
        problems["partitions"] = sevenths.run(pool.cluster(one_a100), root / sevenths.POLICY, say)
        usage.ended()
        problems["usage"] = usage.problem
    for chapter, problem in problems.items():
        if problem:
            say(f"Chapter {chapter} failed: {problem}")
    good, count = sum(result.problem is None for result in results) + ruled, len(results) + 1  # the policy counts
    say(f"\n{good} of {count} examples met their expectations; {time.monotonic() - started:.1f} s in total.")
    return good == count and not any(problems.values())


def _run_with_policy(cluster: Cluster, examples: Sequence[Path], say: Say) -> tuple[list[ExampleResult], bool]:
    first = len(examples) * 3 // 5  # nodes and the controller need up to 10 s to say what became of a policy
    with PolicyChapter(cluster, say) as chapter:
        chapter.apply()
        results = run_examples(cluster, examples[:first], say)
        chapter.show_outcome()
        results += run_examples(cluster, examples[first:], say)
        chapter.restored()
    return results, not chapter.problem


def run_examples(cluster: Cluster, examples: Sequence[Path], say: Say) -> list[ExampleResult]:
    documents: list[str] = []
    scenario = Scenario(
        cluster.client, leftovers=cluster.leftovers, observe=lambda _path: documents.extend(_documents(cluster))
    )
    results = []
    for path in examples:
        documents.clear()
        results.append(result := scenario.run(path, namespace=f"demo-{path.stem}"[:63]))
        say(_account(result, documents))
    return results


def checkout() -> Path:
    """The folder with the manifests: the current one if it has them, else the checkout that this code runs from."""
    here, source = Path.cwd(), Path(__file__).resolve().parents[3]
    return here if (here / CLASSES).is_file() else source


def apply_classes(cluster: Cluster) -> None:
    """Create the project's DeviceClasses, if a checkout exists."""
    path = checkout() / CLASSES
    if path.is_file():
        cluster.apply(path)


def _devices(cluster: Cluster) -> str:
    rows = [["NODE", "DEVICE", "PRODUCT", "ARCHITECTURE", "MEMORY", "DRIVER", "MIG DEVICES"]]
    by_node: dict[str, list[Obj]] = {}
    for item in cluster.slices():
        by_node.setdefault(item["spec"]["nodeName"], []).extend(item["spec"].get("devices") or ())
    for node, devices in by_node.items():
        parts = Counter(_value(device, "parentUUID") for device in devices if _value(device, "type") == "mig")
        for device in devices:
            if _value(device, "type") != "mig":
                memory = (device.get("capacity") or {}).get("memory", {}).get("value", "-")
                product, architecture, driver = (_value(device, name) for name in _SHOWN)
                count = str(parts.pop(_value(device, "uuid"), 0) or "-")
                rows.append([node, device["name"], product, architecture, memory, driver, count])
        # GPUs that are published as MIG devices only.
        rows += [[node, "-", parent, "-", "-", "-", str(count)] for parent, count in parts.items()]
    return f"Devices of {DRIVER}\n{columns(rows)}"


def _value(device: Obj, attribute: str) -> str:
    return str(next(iter(dig(device, "attributes", attribute, default={"": "-"}).values())))


_SHOWN = ("productName", "architecture", "driverVersion")


def _documents(cluster: Cluster) -> list[str]:
    lines = []
    for node in cluster.nodes.values():
        for path in node.claim_files():
            document = json.loads(path.read_text())
            for device in document["devices"]:
                nodes = [item["path"] for item in device["containerEdits"].get("deviceNodes", ())]
                lines.append(f"{node.name}: {document['kind']}={device['name']} -> {' '.join(nodes)}")
    return lines


def _account(result: ExampleResult, documents: list[str]) -> str:
    verdict = "ok" if result.problem is None else "FAILED"
    lines = [f"--- {result.example}: {verdict} (reached {result.reached_s:.2f} s, deleted {result.deleted_s:.2f} s)"]
    lines += [f"    states   {expectation.text}" for expectation in result.expectations]
    for container in result.containers:
        where = f"on {container.node}" if container.node else "on no node"
        lines.append(f"    pod      {container.pod}/{container.container}: {container.phase} {where}")
        lines += [f"      log    {line}" for line in container.log.splitlines()]
        lines += [f"      reason {container.note}"] if container.note else []
    lines += [f"    cdi      {line}" for line in documents]
    if result.problem is not None:
        lines.append(f"    problem  {result.problem}")
    return "\n".join(lines) + "\n"

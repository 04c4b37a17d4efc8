"""Chapters about commands: ``kubectl dra explain`` for a pending pod, with the proof that it is right (holder pods
leave one GPU of a model free on each node; a pod that needs two starts when they are deleted), and ``kubectl dra
migrate`` for a manifest of the device plugin, whose result runs."""

from collections import Counter
from pathlib import Path
from typing import Final

import yaml

from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES
from dra_driver.sim.cluster import DRIVER, Cluster
from dra_driver.sim.demo.chapter import Chapter, Say
from dra_driver.sim.demo.expectations import read_expectations, unmet, why_unscheduled

PENDING_NAMESPACE: Final = "demo-pending"


def explain_pending(cluster: Cluster, say: Say) -> str:
    """Run the chapter; returns the first unmet expectation, or ""."""
    chapter = Chapter(cluster, say, PENDING_NAMESPACE)
    return chapter.run("--- why is my pod Pending?", lambda: _play(chapter))


def _play(chapter: Chapter) -> None:
    model, counts = _most_common_model(chapter.cluster)
    expression = f'device.attributes["{DRIVER}"].productName == "{model}"'
    exactly = {"deviceClassName": "gpu.nvidia.com", "selectors": [{"cel": {"expression": expression}}]}
    for node, count in counts.items():
        chapter.make_pod(f"holder-{node}", {**exactly, "count": max(count - 1, 1)}, node)
    holders = [f"holder-{node}" for node in counts]
    chapter.expect_ready(holders, "the holder pods to run")
    chapter.make_pod("train", {**exactly, "count": 2})
    chapter.expect(
        lambda: None if why_unscheduled(chapter.pod("train")) else "the pod has no condition Unschedulable yet",
        "the scheduler to reject the pod",
    )
    chapter.say(f"    {', '.join(holders)} use all but one {model} of each node; train needs two on one node.\n")
    chapter.command(
        "kubectl dra", "explain", "pod/train", "-n", PENDING_NAMESPACE, *chapter.kubeconfig, statuses=(0, 1)
    )
    chapter.delete_pods(holders)
    chapter.expect_ready(["train"], "the pod to start when the holders are deleted")
    node = dig(chapter.pod("train"), "spec", "nodeName")
    chapter.say(f"    The holders are deleted, and train runs on {node}.\n")


def _most_common_model(cluster: Cluster) -> tuple[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for item in cluster.slices():
        for device in item["spec"].get("devices") or ():
            if dig(device, "attributes", "type", "string") == "gpu":
                model = str(dig(device, "attributes", "productName", "string", default=""))
                found.setdefault(model, Counter())[str(item["spec"].get("nodeName"))] += 1
    return max(found.items(), key=lambda entry: entry[1].total())


MANIFEST: Final = Path("examples/migrate/device-plugin.yaml")
MOVING_NAMESPACE: Final = "demo-moving"


def migrate_manifest(cluster: Cluster, root: Path, say: Say) -> str:
    """Expect the translated pods to run as they did with the device plugin; returns the chapter's problem, or ""."""
    chapter, translated = Chapter(cluster, say, MOVING_NAMESPACE), list[Obj]()

    def play() -> None:
        translated.extend(yaml.safe_load_all(chapter.command("kubectl dra", "migrate", str(MANIFEST), folder=root)))
        say("$ kubectl apply -f migrated.yaml")
        for obj in translated:
            cluster.client.create(obj, MOVING_NAMESPACE)
            say(f"    {obj['kind'].lower()}/{obj['metadata']['name']} created")
        expected = read_expectations(root / MANIFEST)
        chapter.expect(lambda: unmet(expected, cluster.client, MOVING_NAMESPACE), "the translated pods to run")
        say("    " + "; ".join(each.text for each in expected) + "\n")

    try:
        return chapter.run("--- a manifest of the device plugin", play)
    finally:
        for obj in translated:
            if obj["kind"] == DEVICE_CLASSES.kind:
                cluster.client.delete(DEVICE_CLASSES, obj["metadata"]["name"], "")

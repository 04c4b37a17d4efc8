"""Chapter: ``kubectl dra migrate`` translates a manifest of the device plugin, and the result runs."""

from pathlib import Path
from typing import Final

import yaml

from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import Chapter, Say
from dra_driver.sim.demo.expectations import read_expectations, unmet

MANIFEST: Final = Path("examples/migrate/device-plugin.yaml")
NAMESPACE: Final = "demo-moving"


def run(cluster: Cluster, root: Path, say: Say) -> bool:
    """Run the chapter; returns whether the translated pods ran as they did with the device plugin."""
    chapter, translated = Chapter(cluster, say, NAMESPACE), list[Obj]()

    def play() -> None:
        translated.extend(yaml.safe_load_all(chapter.command("kubectl dra", "migrate", str(MANIFEST), folder=root)))
        say("$ kubectl apply -f migrated.yaml")
        for obj in translated:
            cluster.client.create(obj, NAMESPACE)
            say(f"    {obj['kind'].lower()}/{obj['metadata']['name']} created")
        expected = read_expectations(root / MANIFEST)
        chapter.expect(lambda: unmet(expected, cluster.client, NAMESPACE), "the translated pods to run")
        say("    " + "; ".join(each.text for each in expected) + "\n")

    try:
        return chapter.run("--- a manifest of the device plugin", play)
    finally:
        for obj in translated:
            if obj["kind"] == DEVICE_CLASSES.kind:
                cluster.client.delete(DEVICE_CLASSES, obj["metadata"]["name"], "")

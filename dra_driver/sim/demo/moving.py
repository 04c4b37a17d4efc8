"""A chapter of the demonstration: a manifest of the device plugin is translated by ``kubectl dra migrate`` and runs."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.lint import ManifestSource, plain_documents
from dra_driver.kubectl.migrate import InputDocument, MigrateOptions, Translation, as_text, translate
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES
from dra_driver.sim.cluster import Cluster
from dra_driver.sim.demo.chapter import WAIT_S, Say, run_chapter
from dra_driver.sim.demo.expectations import read_expectations, unmet

MANIFEST: Final = Path("examples/migrate/device-plugin.yaml")
NAMESPACE: Final = "demo-moving"


def run(cluster: Cluster, root: Path, say: Say) -> bool:
    """Run the chapter; returns whether the translated pods ran as they did with the device plugin."""
    say("--- a manifest of the device plugin")
    moved = translated(root / MANIFEST)
    try:
        return not run_chapter(cluster, say, NAMESPACE, lambda: _play(cluster, root, moved, say))
    finally:
        for each in moved.classes:
            cluster.store.delete(DEVICE_CLASSES, each["metadata"]["name"])


def translated(path: Path) -> Translation:
    """What ``kubectl dra migrate`` makes of a file. Raises ConfigurationError if it cannot be read."""
    return translate(_documents(path.read_text(encoding="utf-8"), path.name), MigrateOptions(), _documents)


def _play(cluster: Cluster, root: Path, moved: Translation, say: Say) -> None:
    say(f"$ kubectl dra migrate {shlex.quote(str(MANIFEST))} > migrated.yaml\n{as_text(moved)}\n")
    say("$ kubectl apply -f migrated.yaml")
    for each in moved.objects:
        cluster.client.create(each, NAMESPACE)
        say(f"    {_name(each)} created")
    expected = read_expectations(root / MANIFEST)
    cluster.wait(lambda: unmet(expected, cluster.client, NAMESPACE), WAIT_S, "the translated pods to run")
    say("    " + "; ".join(each.text for each in expected) + "\n")


def _documents(text: str, where: str) -> Sequence[InputDocument]:
    found, problems = plain_documents(ManifestSource(name=where, text=text))
    if problems:
        raise ConfigurationError(problems[0])
    return [
        InputDocument(source=where, number=each.number, value=each.value, line=each.line, lines=each.lines)
        for each in found
    ]


def _name(item: Obj) -> str:
    return f"{item['kind'].lower()}/{item['metadata']['name']}"

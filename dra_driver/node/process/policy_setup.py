"""Connects the policies with the folder, the API server and the journal."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from dra_driver.config.settings import NodeSettings
from dra_driver.node.policy import PolicySource
from dra_driver.node.process.policy_watch import ObjectReader, PolicyWatch

FILE: Final = "policies-in-force.json"


def open_policy_watch(settings: NodeSettings, rest: ObjectReader, changed: Callable[[], None]) -> PolicyWatch | None:
    """A started watch; None unless the settings ask for it. ``changed`` is called in its thread."""
    if not settings.policy_objects:
        return None
    watch = PolicyWatch(rest, settings.node_name, changed)
    watch.start()
    return watch


def open_policies(settings: NodeSettings, folder: Path, objects: PolicyWatch | None) -> PolicySource:
    """The policies, loaded. ``folder`` is the driver's own, for the last good set."""
    files = Path(settings.policy_dir) if settings.policy_dir else None
    policies = PolicySource(files, folder / FILE, settings.node_name, objects)
    policies.load()
    return policies

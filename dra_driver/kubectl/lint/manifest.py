"""Kubernetes objects in a text, and the parts of them that lint checks: claims, classes, and pods in any kind."""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from dra_driver.kubectl.lint.nodes import Spot, YamlNode

DRA_GROUP: Final = "resource.k8s.io"
DEFAULT_NAMESPACE: Final = "default"
MAX_OBJECTS: Final = 50_000
_MAX_SEARCHED: Final = 20_000


class ManifestText(Struct, frozen=True):
    """A file's name and text. ``allowed`` maps lines to the rules that comments suppress there."""

    name: str
    text: str
    allowed: dict[int, frozenset[str]]
    allowed_in_file: frozenset[str] = frozenset()


class Manifest(Struct, frozen=True):
    """One object. ``namespace`` is ``default`` when it has none."""

    text: ManifestText
    spot: Spot
    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def group(self) -> str:
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]

    @property
    def is_dra(self) -> bool:
        return self.group == DRA_GROUP

    @property
    def label(self) -> str:
        """Returns ``ResourceClaim team-a/gpu`` for messages."""
        namespace = self.spot.string("metadata", "namespace")
        return f"{self.kind} {namespace + '/' if namespace else ''}{self.name or '(no name)'}"


def objects_of(text: ManifestText, root: YamlNode) -> Iterator[Manifest]:
    """Yields the object of a document, or the items of a list; nothing if it is no Kubernetes object."""
    waiting = [(Spot(root), "", "")]
    for spot, usual_kind, usual_version in waiting:
        if spot.node.kind != "map" or len(waiting) > MAX_OBJECTS:
            continue
        kind, version = spot.string("kind") or usual_kind, spot.string("apiVersion") or usual_version
        items = spot.get("items")
        if kind.endswith("List") and items is not None and items.node.kind == "list":
            # A typed list has kind and version once; in a plain List every item has them.
            inner = (kind.removesuffix("List"), version if kind != "List" else "")
            waiting += [(item, *inner) for item in spot.each("items")]
        elif kind and version:
            yield _manifest(text, spot, version, kind)


def claim_devices(manifest: Manifest) -> Spot | None:
    """Returns ``devices`` of a claim or template."""
    steps = {"ResourceClaim": ("spec", "devices"), "ResourceClaimTemplate": ("spec", "spec", "devices")}
    found = steps.get(manifest.kind) if manifest.is_dra else None
    return manifest.spot.get(*found) if found else None


def pod_specs(manifest: Manifest) -> Iterator[Spot]:
    """Yields pod specifications in an object of any kind: mappings with a list ``containers``.

    This finds pods in Deployments, Jobs and the custom resources of training operators.
    """
    if manifest.is_dra:
        return
    waiting, looked_at = [manifest.spot], 0
    while waiting and looked_at < _MAX_SEARCHED:
        spot = waiting.pop()
        looked_at += 1
        containers = spot.node.get("containers") if spot.node.kind == "map" else None
        if containers is not None and containers.kind == "list":
            yield spot
        elif spot.node.kind == "map":
            waiting += [value for _, value in spot.pairs() if value.node.kind != "scalar"]
        else:
            waiting += [Spot(item, f"{spot.path}[{index}]") for index, item in enumerate(spot.node.items)]


def _manifest(text: ManifestText, spot: Spot, version: str, kind: str) -> Manifest:
    namespace = spot.string("metadata", "namespace") or DEFAULT_NAMESPACE
    name = spot.string("metadata", "name") or spot.string("metadata", "generateName")
    return Manifest(text, spot, version, kind, namespace, name)

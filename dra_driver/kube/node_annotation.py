"""Change one annotation of a Node with a merge patch for one resourceVersion; a conflict computes the value again, so
that two writers do not undo each other."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from dra_driver.core.errors import ConfigurationError, ConflictError, KubernetesApiError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.objects.meta import ObjectMeta
from dra_driver.kube.shapes import read

_TRIES: Final = 10

Annotations = Mapping[str, str]


class NodeApi(Protocol):
    """The part of ``kube.rest.RestClient`` that is needed here."""

    def get(self, path: str) -> Mapping[str, object]: ...
    def merge_patch(self, path: str, body: Mapping[str, object]) -> object: ...


def node_metadata(api: NodeApi, node: str) -> ObjectMeta:
    """Raises ConfigurationError for a node that does not exist, KubernetesApiError for metadata that do not fit."""
    path = paths.node(node)
    try:
        return read(ObjectMeta, api.get(path).get("metadata"))
    except ValueError as error:
        raise KubernetesApiError(f"GET {path}: metadata.{error}") from error
    except NotFoundError as error:
        raise ConfigurationError(f"node {node[:253]!r} does not exist: kubectl get nodes") from error


def change_annotation(
    api: NodeApi, node: str, key: str, decide: Callable[[Annotations], str | None]
) -> tuple[str | None, bool]:
    """The annotation's value after the change, None for none, and whether it changed. ``decide`` computes the value
    from all annotations. Raises ConflictError after `_TRIES` conflicts in a row, and the errors of `node_metadata`."""
    for left in reversed(range(_TRIES)):
        metadata = node_metadata(api, node)
        wanted = decide(metadata.annotations)
        if wanted == metadata.annotations.get(key):
            return wanted, False
        patch = {"resourceVersion": metadata.resource_version, "annotations": {key: wanted}}
        try:
            api.merge_patch(paths.node(node), {"metadata": patch})
        except ConflictError:
            if not left:
                raise
            continue
        return wanted, True
    raise AssertionError("unreachable")

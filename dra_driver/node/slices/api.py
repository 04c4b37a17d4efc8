"""The subset of the Kubernetes API that publishing uses: an interface, and its implementation over REST."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from msgspec import to_builtins

from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError
from dra_driver.kube import paths
from dra_driver.kube.reflector import NewestVersion
from dra_driver.kube.rest import RestClient
from dra_driver.node.slices.diff import Delete, SliceBody

StoredSlice = Mapping[str, Any]


class SlicesApi(Protocol):
    """This driver's ResourceSlices on this node. Raises subclasses of `errors.KubernetesApiError`."""

    def list(self) -> list[StoredSlice]:
        """All ResourceSlices of the driver and node, at least as new as this client's last write or notice."""

    def create(self, body: SliceBody, *, dry_run: bool = False) -> StoredSlice:
        """The ResourceSlice as stored, or as a dry run would store it."""

    def update(self, body: SliceBody) -> StoredSlice:
        """The ResourceSlice as stored. ConflictError when it changed, NotFoundError when it does not exist."""

    def delete(self, slice_: Delete) -> None:
        """ConflictError when it changed, NotFoundError when it does not exist."""

    def node_uid(self) -> str:
        """UID of the Node object; NotFoundError when it does not exist."""


class RestSlicesApi:
    """`SlicesApi` against an API server. Thread-safe."""

    def __init__(self, rest: RestClient, driver: str, node: str, newest: NewestVersion | None = None) -> None:
        """``newest`` is shared with the reflector that notices changes."""
        self._rest = rest
        self._newest = newest or NewestVersion()
        self._node = node
        self.field_selector = f"spec.driver={driver},spec.nodeName={node}"

    def list(self) -> list[StoredSlice]:
        query = {"fieldSelector": self.field_selector, **self._newest.query()}
        try:
            document = self._rest.list(paths.resource_slices(), query)
        except KubernetesApiError as error:
            self._newest.failed(error)
            raise
        self._saw(document)
        return [item for item in document["items"] if isinstance(item, dict)]

    def create(self, body: SliceBody, *, dry_run: bool = False) -> StoredSlice:
        stored = self._rest.create(paths.resource_slices(), to_builtins(body), dry_run=dry_run)
        if not dry_run:
            self._saw(stored)
        return stored

    def update(self, body: SliceBody) -> StoredSlice:
        with self._current_after_conflict():
            stored = self._rest.update(paths.resource_slices(str(body.metadata["name"])), to_builtins(body))
        self._saw(stored)
        return stored

    def delete(self, slice_: Delete) -> None:
        with self._current_after_conflict():
            self._rest.delete(paths.resource_slices(slice_.name), slice_.uid, slice_.resource_version)

    def node_uid(self) -> str:
        metadata = self._rest.get(paths.node(self._node)).get("metadata")
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        if not isinstance(uid, str) or not uid:
            raise KubernetesApiError(f"node {self._node}: the API server's answer has no metadata.uid")
        return uid

    @contextmanager
    def _current_after_conflict(self) -> Iterator[None]:
        try:
            yield
        except (ConflictError, NotFoundError):
            self._newest.forget()  # another client wrote: the next list has to show what
            raise

    def _saw(self, answer: Mapping[str, object]) -> None:
        metadata = answer.get("metadata")
        self._newest.saw(str(metadata.get("resourceVersion", "")) if isinstance(metadata, Mapping) else "")

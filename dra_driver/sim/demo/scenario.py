"""Run one example: apply it in its own namespace, check its expectations, delete it, and look for leftovers. The caller
provides any cluster that meets its `requirements` and a function that lists leftovers on the nodes."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from dra_driver.core.errors import AlreadyExistsError, DraError, RetryableError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import NAMESPACES, PODS, RESOURCE_CLAIMS
from dra_driver.sim.demo.expectations import Expectation, read_expectations, unmet, why_unscheduled
from dra_driver.sim.loop import Client, deletion_order, kind_of, load, split_namespace

POLL_S = 0.05
STEADY_S = 0.3


class ContainerReport(Struct, frozen=True, kw_only=True):
    """One container and its log when the expectations were met. ``note`` is why its pod has no node, "" with one."""

    pod: str
    node: str
    phase: str
    container: str
    log: str
    note: str = ""


class ExampleResult(Struct, frozen=True, kw_only=True):
    """The result of one example. ``problem`` is None if its expectations were met and nothing was left behind."""

    example: str
    expectations: Sequence[Expectation]
    containers: Sequence[ContainerReport]
    reached_s: float
    deleted_s: float
    problem: str | None


class Scenario:
    """Run examples in sequence. ``observe`` gets the example's path while its expectations are met."""

    def __init__(
        self,
        client: Client,
        *,
        leftovers: Callable[[], list[str]] = list,
        observe: Callable[[Path], None] = lambda _path: None,
        reach_s: float = 60.0,
        delete_s: float = 60.0,
    ) -> None:
        self._client = client
        self._leftovers = leftovers
        self._observe = observe
        self._reach_s = reach_s
        self._delete_s = delete_s

    def run(self, path: Path, namespace: str) -> ExampleResult:
        """Run one example in ``namespace``, or in its own Namespace; creates and deletes the namespace."""
        expectations = read_expectations(path)
        namespace_object, objects = split_namespace(load(path), namespace)
        namespace = namespace_object["metadata"]["name"]
        started = time.monotonic()
        problem, containers = None, []
        try:
            self._apply(objects, namespace_object)
            self._wait(lambda: unmet(expectations, self._client, namespace), self._reach_s)
            time.sleep(STEADY_S)  # and check again: a pod may be Pending only because it is slow
            self._wait(lambda: unmet(expectations, self._client, namespace), POLL_S)
            containers = self._container_reports(namespace)
            self._observe(path)
        except DraError as error:
            problem, containers = str(error), self._container_reports(namespace)
        reached = time.monotonic()
        try:
            self._remove(objects, namespace)
        except DraError as error:
            problem = problem or str(error)
        return ExampleResult(
            example=path.name,
            expectations=expectations,
            containers=containers,
            reached_s=reached - started,
            deleted_s=time.monotonic() - reached,
            problem=problem,
        )

    def _apply(self, objects: Sequence[Obj], namespace_object: Obj) -> None:
        with suppress(AlreadyExistsError):
            self._client.create(namespace_object, "")
        for obj in objects:
            self._client.create(obj, namespace_object["metadata"]["name"])

    def _remove(self, objects: Sequence[Obj], namespace: str) -> None:
        for obj in deletion_order(objects):
            kind = kind_of(obj)
            self._client.delete(kind, obj["metadata"]["name"], namespace if kind.namespaced else "")
        self._wait(lambda: self._remains(namespace), self._delete_s)
        self._client.delete(NAMESPACES, namespace, "")

    def _remains(self, namespace: str) -> str | None:
        """Return leftovers after deleting the objects. Call before the namespace is deleted, which would hide them."""
        left = [
            f"{kind.singular} {obj['metadata']['name']}"
            for kind in (PODS, RESOURCE_CLAIMS)
            for obj in self._client.list(kind, namespace)
        ]
        left += self._leftovers()
        return f"left behind after deletion: {', '.join(left)}" if left else None

    def _container_reports(self, namespace: str) -> list[ContainerReport]:
        containers = []
        for pod in self._client.list(PODS, namespace):
            for container in pod["spec"]["containers"]:
                log = ""
                with suppress(DraError):  # a container that never started has no log
                    log = self._client.log(namespace, pod["metadata"]["name"], container["name"])
                containers.append(
                    ContainerReport(
                        pod=pod["metadata"]["name"],
                        node=dig(pod, "spec", "nodeName", default=""),
                        phase=dig(pod, "status", "phase", default=""),
                        container=container["name"],
                        log=log,
                        note=why_unscheduled(pod),
                    )
                )
        return containers

    @staticmethod
    def _wait(complaint: Callable[[], str | None], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (problem := complaint()) is not None:
            if time.monotonic() >= deadline:
                raise RetryableError(f"not reached within {timeout_s:g} s: {problem}")
            time.sleep(POLL_S)

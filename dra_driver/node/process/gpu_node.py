"""Keeps the GpuNode of this node: made once, its status written when it changes, and nothing at rest.

One thread. At the start it reads the object and writes only what differs, so that the restart of a fleet writes
nothing. Writes come at least `PAUSE_S` apart, and further apart while changes keep coming; sentences that differ in
numbers alone are no change for `STEADY_S`. An object that was deleted comes back with the next change, at the latest
after `CHECK_S`. One whose owner is an earlier Node of this name is about to be deleted by Kubernetes' garbage
collector: it is looked at until it has gone, and made anew. Where the kind is not served, the node works without.
"""

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec.structs import replace

from dra_driver.config.policy import API_VERSION
from dra_driver.config.status import NODE_KIND, node_status, node_status_of
from dra_driver.core.backoff import Backoff
from dra_driver.core.errors import (
    AlreadyExistsError,
    ConflictError,
    DraError,
    ForbiddenError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
)
from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.core.telemetry import metrics
from dra_driver.kube import paths

log = logging.getLogger(__name__)

THREAD_NAME: Final = "gpu-node"
MANAGER: Final = "gpu.dra-driver.io-node"
PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0
RETRY_S: Final = 30.0
ABSENT_S: Final = (10.0, 300.0)
"""The first and the longest wait after an answer that the kind is not served, or not allowed, and for the end of an
object whose owner has gone."""
CHECK_S: Final = 3600.0
STEADY_S: Final = 600.0
_NUMBERS: Final = re.compile(r"\d[\d., ]*")


class NodeWriter(Protocol):
    """The part of ``kube.rest.RestClient`` that is needed here."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...
    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]: ...
    def apply(self, path: str, body: Mapping[str, Any], manager: str) -> dict[str, Any]: ...


class GpuNodeKeeper:
    """``start`` and ``stop`` once, by one owner; ``wake`` from any thread.

    ``collect`` returns what is to be written, None while it is not known yet, and may raise DraError. ``owner`` returns
    the UID of the Node object, "" while it is not known. ``warn`` records an event on the Node.
    """

    def __init__(
        self,
        rest: NodeWriter,
        node_name: str,
        collect: Callable[[], GpuNodeStatus | None],
        owner: Callable[[], str],
        warn: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._rest, self._name, self._collect, self._owner, self._warn = rest, node_name, collect, owner, warn
        self._clock, self._now = clock, now
        self._written: GpuNodeStatus | None = None  # None: what is stored has to be read first
        self._written_at = float("-inf")
        self._pause_s = PAUSE_S
        self._later = Backoff(first_s=ABSENT_S[0], longest_s=ABSENT_S[1], jitter=0.0)
        self._is_left_behind = False  # the object that is stored belongs to an earlier Node
        self._problem: str | None = None
        self._uid = ""  # of the Node, at the last step
        self._woken, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    @property
    def problem(self) -> str | None:
        """Why the GpuNode is not as it should be, as a sentence; None while it is, and where the kind is not served."""
        return self._problem

    def start(self) -> None:
        self._woken.set()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread; a request in progress may end later. Idempotent."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def wake(self) -> None:
        """Something changed that the GpuNode may show. Returns at once."""
        self._woken.set()

    def step(self) -> float:
        """Write what changed; returns the seconds after which to come again without being woken."""
        try:
            wanted = self._collect()
            if wanted is None:
                return RETRY_S
            wait_s = self._settle(wanted)
        except NotFoundError as error:
            log.info("the API server has no GpuNodes; the node works without", extra={"reason": error})
            self._problem, self._written = None, None
            return self._later.next_s()
        except (ConflictError, AlreadyExistsError) as error:
            log.info("the GpuNode is written again", extra={"reason": error})
            return PAUSE_S
        except (ForbiddenError, InvalidObjectError) as error:
            self._fail(f"the GpuNode is not written: {error}; see docs/operations.md for the rights it takes")
            return self._later.next_s()
        except DraError as error:
            log.info("the GpuNode is written later", extra={"reason": error})
            return RETRY_S
        self._problem = None
        if self._is_left_behind:
            return self._later.next_s()
        self._later.reset()
        return wait_s

    def check(self) -> None:
        """What is stored is compared at the next step. For the thread that calls ``step``."""
        self._written = None

    def _settle(self, wanted: GpuNodeStatus) -> float:
        """Write ``wanted`` if it differs from what is stored. Returns seconds until the next look."""
        former, self._uid = self._uid, self._owner()
        if former not in ("", self._uid):  # with a Node that is deleted and made anew, its GpuNode goes
            self.check()
        if self._written is None:
            self._written = self._stored()
        cut = node_status_of({"status": node_status(wanted, "")})  # long texts and lists are stored in part
        if cut is None or cut == self._written:
            return CHECK_S
        steady_s = STEADY_S - (self._clock() - self._written_at)
        if steady_s > 0 and self._written is not None and _steady(cut) == _steady(self._written):
            return steady_s
        self._write(wanted)
        self._written = cut
        return CHECK_S

    def pause_s(self) -> float:
        """How long to wait before the next write: longer while one change follows another."""
        since = self._clock() - self._written_at
        if since > LONGEST_PAUSE_S:
            self._pause_s = PAUSE_S
        return max(0.0, self._pause_s - since)

    def _stored(self) -> GpuNodeStatus | None:
        try:
            found = self._rest.get(paths.gpu_nodes(self._name))
        except NotFoundError:
            self._is_left_behind = False
            return None  # the object, or the kind: its creation tells
        owners, uid = _owners(found), self._owner()
        self._is_left_behind = bool(uid and owners) and uid not in owners
        return node_status_of(found)

    def _write(self, wanted: GpuNodeStatus) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now()))
        body = {
            "apiVersion": API_VERSION,
            "kind": NODE_KIND,
            "metadata": {"name": self._name},
            "status": node_status(wanted, at),
        }
        path = f"{paths.gpu_nodes(self._name)}/status"
        try:
            self._rest.apply(path, body, MANAGER)
        except NotFoundError:
            self._create()
            self._rest.apply(path, body, MANAGER)
        self._written_at = self._clock()
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    def _create(self) -> None:
        uid = self._owner()
        if not uid:
            raise KubernetesApiError(f"the Node {self._name} is not known yet, which has to own the GpuNode")
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._name, "uid": uid}
        metadata = {"name": self._name, "ownerReferences": [owner]}
        self._rest.create(paths.gpu_nodes(), {"apiVersion": API_VERSION, "kind": NODE_KIND, "metadata": metadata})

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("the GpuNode of this node is not written", extra={"reason": problem})
            self._warn(problem)
        self._problem = problem

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.is_set():
            if not self._woken.wait(wait_s):
                self.check()
            self._woken.clear()
            if self._stopping.wait(self.pause_s()):  # what comes at the same time is written together
                return
            try:
                wait_s = self.step()
            except Exception:  # thread boundary: the next step may succeed
                log.exception("writing the GpuNode failed with an internal error")
                metrics.internal_error("gpu-node")
                wait_s = RETRY_S
            wait_s *= random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, keeps no secret


def _owners(found: Mapping[str, Any]) -> list[str]:
    metadata = found.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, dict) else None
    return [str(each.get("uid")) for each in owners if isinstance(each, dict)] if isinstance(owners, list) else []


def _steady(status: GpuNodeStatus) -> GpuNodeStatus:
    """The status without the numbers in its sentences."""
    return replace(
        status,
        gpus=tuple(replace(each, message=_NUMBERS.sub("#", each.message or "")) for each in status.gpus),
        problems=tuple(replace(each, message=_NUMBERS.sub("#", each.message)) for each in status.problems),
    )

"""Who is being served: the faults of a driver that cannot do two things at once, and of its health stream."""

import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tests.fakes.subject.claims import Claims, Refused

EVERY_S = 0.05
WORK_S = 0.15


class Calls:
    """Calls in flight. Thread-safe."""

    def __init__(self, faults: Collection[str]) -> None:
        self._faults = faults
        self._lock = threading.Lock()  # guards the sets and the count
        self._busy: set[str] = set()
        self._stuck: set[str] = set()
        self.streams = 0

    @contextmanager
    def prepare(self, uid: str, context: grpc.ServicerContext) -> Iterator[None]:
        """Raises Refused with the faults of overlapping calls."""
        with self._lock:
            same, other = uid in self._busy, bool(self._busy - {uid})
            if (same and "busy-with-claim" in self._faults) or (other and "busy-with-another" in self._faults):
                raise Refused("busy")
            if self.streams > 1 and "health-blocks" in self._faults:
                raise Refused("health streams are open")
            self._busy.add(uid)
        try:
            if {"busy-with-claim", "busy-with-another"} & set(self._faults):
                time.sleep(WORK_S)
            if "stuck-when-given-up" in self._faults:
                self._stick(uid, context)
            yield
        finally:
            with self._lock:
                self._busy.discard(uid)

    def _stick(self, uid: str, context: grpc.ServicerContext) -> None:
        """Work for a while; a claim whose caller gives up meanwhile is lost for all later calls."""
        end = time.monotonic() + 2 * WORK_S
        while context.is_active() and time.monotonic() < end:
            time.sleep(0.005)
        with self._lock:
            if not context.is_active():
                self._stuck.add(uid)
            if uid in self._stuck:
                raise Refused("the claim is being prepared")

    @contextmanager
    def unprepare(self, uid: str) -> Iterator[None]:
        key = f"unprepare {uid}"
        with self._lock:
            if key in self._busy and "busy-with-unprepare" in self._faults:
                raise Refused("busy")
            self._busy.add(key)
        try:
            if "busy-with-unprepare" in self._faults:
                time.sleep(WORK_S)
            yield
        finally:
            with self._lock:
                self._busy.discard(key)


def health_stream(
    messages: Any, version: str, claims: Claims, calls: Calls, context: grpc.ServicerContext
) -> Iterator[Any]:
    """Reports the devices of prepared claims again and again."""
    calls.streams += 1
    first = calls.streams
    try:
        while context.is_active() and not claims.stopped.wait(0 if claims.has("health-flood") else EVERY_S):
            if reported := claims.prepared_devices():
                yield _message(messages, version, claims, reported, first)
                if claims.has("health-once"):
                    claims.stopped.wait(5.0)
    finally:
        calls.streams -= not claims.has("health-first-stream-only")


def _message(messages: Any, version: str, claims: Claims, reported: list[dict[str, Any]], number: int) -> Any:
    answer = messages.NodeWatchResourcesResponse()
    ill = claims.has("health-versions-differ") and version == "v1alpha1"
    for device in reported:
        name = device["device"]
        if claims.has("health-of-unknown-device"):
            name = "never-published"
        if claims.has("health-flood"):
            name = f"flood-{time.monotonic_ns()}"
        if claims.has("health-first-stream-only") and number % 2 == 0:
            name = "unit-33"
        answer.devices.append(
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=device["pool"], device_name=name),
                health=2 if ill else 1,
                health_check_timeout_seconds=1 if claims.has("health-once") or claims.has("health-flood") else 30,
                message="x" * 5000 if claims.has("long-health-message") else "",
            )
        )
    return answer

"""Tools of the checks: the suite as the kubelet and the scheduler of one node.

Each step has a time limit. A step raises ViolationError if the driver breaks the kubelet's expectation, and UnableError
if the suite cannot do it.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field

from dra_driver.conformance import cdi_folder
from dra_driver.conformance.cdi_edits import Host, MergedEdits
from dra_driver.conformance.cluster import CheckClaim, ClaimTemplate, ClusterObjects, JsonObject, Scheduler, incomplete
from dra_driver.conformance.plugin import (
    DRA_SERVICES,
    AnsweredDevice,
    ClaimKey,
    Plugin,
    PluginInfo,
    PrepareAnswer,
    Registrar,
    ask,
    check_complete,
    notify,
    sockets,
)
from dra_driver.conformance.values import TimeLimits, UnableError, ViolationError
from dra_driver.core.errors import KubernetesApiError
from dra_driver.core.unix_grpc import CallError

SLOW_CALL_S = 5.0
"""Seconds for a call after another call has reached the kubelet's deadline."""
UNANSWERED = ("DEADLINE_EXCEEDED", "UNAVAILABLE", "RESOURCE_EXHAUSTED")
"""Codes of calls without an answer of the driver, or with one that is too large."""
GRACE_S = 10.0
"""Seconds for cleaning up after a check, beyond its own time."""


class Control(Protocol):
    """Kill the driver, as SIGKILL does, and start it again. Raises UnableError."""

    def restart(self) -> None: ...


class Faults(Protocol):
    """Break a device so that the driver must report it as Unhealthy, and repair it. Both raise UnableError."""

    def inject(self, pool: str, device: str) -> None: ...

    def recover(self, pool: str, device: str) -> None: ...


class TestedDriver(Struct, frozen=True, kw_only=True):
    """Paths of the driver, and the ways to restart it and to break its devices.

    ``uses_cdi`` is False for a driver that passes devices to containers in another way, such as NRI. ``has_disks``:
    the driver manages block devices.
    """

    driver: str
    registrar_dir: Path
    cdi_dirs: tuple[Path, ...]
    control: Control | None = None
    faults: Faults | None = None
    host: Host = Host()
    uses_cdi: bool = True
    has_disks: bool = False
    limits: TimeLimits = field(default_factory=TimeLimits)


class Bench:
    """Tools of one run. One thread; `begin` before each check and `clean` after it."""

    def __init__(self, subject: TestedDriver, cluster: ClusterObjects, template: ClaimTemplate | None = None) -> None:
        self.subject = subject
        self.cluster = cluster
        self.scheduler = Scheduler(cluster, self.slices, template)
        self.limits = subject.limits
        self._plugin: Plugin | None = None
        self._claims: list[CheckClaim] = []
        self._deadline = 0.0
        # After a first timeout the suite waits only briefly; otherwise a dead driver would take hours.
        self._silent = self._unpublished = self._slow = False

    # One check.

    def begin(self) -> None:
        self._deadline = time.monotonic() + self.limits.check_s

    def clean(self) -> None:
        """Unprepare and delete the claims of the check. Ignores failures, which other checks report."""
        self._deadline = max(self._deadline, time.monotonic() + GRACE_S)
        for claim in self._claims:
            with suppress(CallError, ViolationError, UnableError):
                self.plugin().unprepare([claim.key], min(self.limits.call_s, GRACE_S))
        for claim in self._claims:
            with suppress(KubernetesApiError):
                self.cluster.delete_claim(claim.wire)
        self._claims.clear()

    def left_s(self, most_s: float) -> float:
        """Return ``most_s``, or the time left to the check. Raises ViolationError when none is left."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ViolationError(
                f"the check did not end within {self.limits.check_s:g} s; the driver was too slow (--timeout)"
            )
        return min(most_s, left)

    def wait(self, condition: Callable[[], str], within_s: float, what: str) -> None:
        """Wait until ``condition`` returns an empty text; raise ViolationError with its last text otherwise."""
        until = time.monotonic() + self.left_s(within_s)
        while problem := condition():
            if time.monotonic() >= until:
                raise ViolationError(f"waited {within_s:g} s for {what}: {problem}")
            self.pause(self.limits.pause_s)

    def pause(self, seconds: float) -> None:
        time.sleep(self.left_s(seconds))

    # Registration.

    def registrar(self) -> Registrar:
        """The driver's registration socket: the newest with its name, else the only socket. Raises ViolationError."""
        found: list[Registrar] = []
        newest_first = sorted(sockets(self.subject.registrar_dir), key=lambda one: one[1][1], reverse=True)
        for path, identity in newest_first:
            found.append(ask(path, identity, self.limits))
            info = found[-1].info
            if info is not None and info.name == self.subject.driver:
                return found[-1]
        if len(found) == 1:
            return found[0]
        listed = ", ".join(one.info.name if one.info else one.problem for one in found[:8]) or "nothing"
        raise ViolationError(
            f"no socket in {self.subject.registrar_dir} belongs to driver {self.subject.driver}; found: {listed}"
        )

    def info(self) -> PluginInfo:
        """Return the driver's answer to GetInfo; repeats the call as the kubelet does. Raises UnableError."""
        answer: list[PluginInfo] = []

        def asked() -> str:
            try:
                registrar = self.registrar()
            except ViolationError as error:
                return str(error)
            answer[:] = [registrar.info] if registrar.info else []
            return registrar.problem

        try:
            self.wait(asked, 0.0 if self._silent else self.limits.restart_s, "an answer to GetInfo")
        except ViolationError as error:
            self._silent = True
            raise UnableError(str(error)) from error
        self._silent = False
        return answer[0]

    def plugin(self) -> Plugin:
        """The registered driver; registers it first if needed. Raises UnableError."""
        if self._plugin is None:
            info = self.info()
            version = next((one for one in info.versions if one in DRA_SERVICES), None)
            if version is None:
                raise UnableError(f"{info.name} supports none of {', '.join(DRA_SERVICES)}: a kubelet refuses it")
            try:
                notify(self.registrar().path, self.limits, registered=True)
            except (CallError, ViolationError) as error:
                raise UnableError(f"the driver cannot be registered: {error}") from error
            self._plugin = Plugin(info, version, self.limits.call_s)
        return self._plugin

    def reconnect(self) -> None:
        """Drop the connection, as a restarting kubelet does. The next `plugin` registers again."""
        if self._plugin is not None:
            self._plugin.close()
            self._plugin = None

    def restart(self) -> None:
        """End the driver without warning and start it again, then wait for its registration."""
        if self.subject.control is None:
            raise UnableError("the suite has no permission to restart the driver")
        before = dict(sockets(self.subject.registrar_dir))
        self.subject.control.restart()
        self.reconnect()

        def back() -> str:
            try:
                found = self.registrar()
            except ViolationError as error:
                return str(error)
            if found.problem:
                return found.problem
            return "" if before.get(found.path) != found.identity else f"{found.path} is still the old socket"

        self.wait(back, self.limits.restart_s, "the driver's registration socket after its restart")

    # Claims.

    def claim(self, **wanted: Any) -> CheckClaim:
        """Raises UnableError; see `Scheduler.allocate` for ``wanted``."""
        claim = self.scheduler.allocate(**wanted)
        self._claims.append(claim)
        return claim

    def exclusive_claim(self) -> CheckClaim:
        return self.claim(keys={device.key for device in self.scheduler.usable() if not device.is_shared})

    def prepared_claim(self) -> CheckClaim:
        claim = self.claim()
        self.prepared(claim)
        return claim

    def adopt(self, claim: CheckClaim) -> CheckClaim:
        """Delete this claim at the end of the check, too."""
        self._claims.append(claim)
        return claim

    def finish(self, claim: CheckClaim) -> None:
        """Unprepare and delete a claim before the end of its check."""
        self.unprepared(claim.key)
        self.cluster.delete_claim(claim.wire)
        self._claims.remove(claim)

    def answers(self, claims: Sequence[ClaimKey]) -> dict[str, PrepareAnswer]:
        """NodePrepareResources with exactly one answer per claim. Raises ViolationError."""
        try:
            found = self.plugin().prepare(claims, self._call_s())
        except CallError as error:
            raise self._broken(error) from error
        check_complete("NodePrepareResources", claims, found)
        return found

    def prepared(self, claim: CheckClaim) -> tuple[AnsweredDevice, ...]:
        """The devices of a claim that must be prepared. Raises ViolationError."""
        answer = self.answers([claim.key])[claim.key.uid]
        if answer.error:
            raise ViolationError(f"claim {claim.key} was not prepared: {answer.error}")
        return answer.sorted()

    def refusal(self, claim: ClaimKey, *, waits: bool = False) -> str:
        """Return why the driver refuses a claim; "" if it prepares it. With ``waits``, a timeout is a refusal."""
        try:
            found = self.plugin().prepare([claim], min(self._call_s(), self.limits.in_use_s if waits else math.inf))
        except CallError as error:
            if waits and error.code == "DEADLINE_EXCEEDED":
                return str(error)
            if error.code in UNANSWERED:
                raise self._broken(error) from error
            return str(error)
        check_complete("NodePrepareResources", [claim], found)
        return found[claim.uid].error

    def ended(self, claim: ClaimKey) -> None:
        """NodeUnprepareResources with any answer. Raises ViolationError if the driver does not answer."""
        try:
            self.plugin().unprepare([claim], self._call_s())
        except CallError as error:
            if error.code in UNANSWERED:
                raise self._broken(error) from error

    def check_granted_once(
        self, claims: Sequence[CheckClaim], answers: Sequence[Callable[[], Mapping[str, PrepareAnswer]]]
    ) -> None:
        """Raise ViolationError if the answers to calls grant one device to more than one of these claims.

        A failed call grants nothing: a driver may wait for the device until the call ends.
        """
        got: set[str] = set()
        for answer in answers:
            with suppress(CallError):
                got |= {uid for uid, one in answer().items() if not one.error}
        if len(got & {claim.key.uid for claim in claims}) > 1:
            raise ViolationError(
                f"device {min(claims[0].devices())[1]} was prepared for claims "
                f"{' and '.join(str(claim.key) for claim in claims[:2])}; expected an error for all but one"
            )

    def unprepared(self, *claims: ClaimKey) -> None:
        """NodeUnprepareResources, which must succeed. Raises ViolationError."""
        try:
            found = self.plugin().unprepare(claims, self._call_s())
        except CallError as error:
            raise self._broken(error) from error
        check_complete("NodeUnprepareResources", claims, found)
        for claim in claims:
            if found[claim.uid]:
                raise ViolationError(f"claim {claim} was not unprepared: {found[claim.uid]}")

    def _call_s(self) -> float:
        return self.left_s(min(self.limits.call_s, SLOW_CALL_S if self._slow else math.inf))

    def _broken(self, error: CallError) -> ViolationError:
        self._slow = self._slow or error.code == "DEADLINE_EXCEEDED"
        return ViolationError(str(error))

    # Published slices and written files.

    def slices(self) -> list[JsonObject]:
        """The driver's slices of this node, complete. Raises UnableError."""
        found: list[JsonObject] = []

        def listed() -> str:
            found[:] = self.cluster.slices()
            return incomplete(found)

        try:
            self.wait(listed, 0.0 if self._unpublished else self.limits.publish_s, "complete ResourceSlices")
        except ViolationError as error:
            self._unpublished = True
            raise UnableError(str(error)) from error
        self._unpublished = False
        return found

    def unresolved(self, devices: Sequence[AnsweredDevice]) -> str:
        ids = [name for device in devices for name in device.cdi_ids]
        return "; ".join(cdi_folder.unresolved(self.subject.cdi_dirs, ids)[:3])

    def check_resolves(self, devices: Sequence[AnsweredDevice], when: str) -> None:
        """Raise ViolationError, which begins with ``when``, unless all CDI ids of these devices resolve."""
        if problem := self.unresolved(devices):
            raise ViolationError(f"{when}: {problem}")

    def edits(self, devices: Sequence[AnsweredDevice], when: str) -> MergedEdits:
        """The merged edits of all CDI ids of these devices. Raises as `check_resolves`."""
        self.check_resolves(devices, when)
        return cdi_folder.edits(self.subject.cdi_dirs, [name for device in devices for name in device.cdi_ids])

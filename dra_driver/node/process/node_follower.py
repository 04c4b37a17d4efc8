"""Follow the drain annotation and second publishers, which change the devices that this node publishes.

An annotation of the Node requests a drain (``core/model/drain.py``): all forms of the GPUs are tainted. Claims that are
already allocated are prepared as before, because a refused prepare would leave their pods waiting on this node.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.files import read_plain, replace_file
from dra_driver.core.model.drain import DRAIN_ANNOTATION, DRAINED_TAINT, NOT_DRAINED, DrainRequest
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, Taint, Terms, terms_of
from dra_driver.core.quantity import Quantity
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.own_node import OwnNode, OwnNodeWatch
from dra_driver.node.process.node_events import Tell, Warn, tell
from dra_driver.node.slices import OtherPool, Publisher

log = logging.getLogger(__name__)

FIRST_NODE_S: Final = 30.0
"""Seconds for which a run publishes nothing without having read its Node: drained GPUs would lose their taint."""
FIRST_SLICES_S: Final = 1.0
"""Seconds that a start waits for this node's slices; a later result can still withdraw devices."""
TAINT: Final = Taint(key=DRAINED_TAINT, value="requested", effect="NoSchedule")
_SHOWN: Final = 4
_BY: Final = f"annotation {DRAIN_ANNOTATION}; kubectl dra undrain ends it"


class NodeFollower:
    """``look`` and ``report`` from one thread; the rest from any."""

    def __init__(
        self,
        own_node: OwnNodeWatch,
        events: EventRecorder,
        publisher: Publisher,
        inventory: Inventory,
        driver: str,
        *,
        folder: Path,
        allow_second: bool,
        on_undrain: Callable[[Collection[GpuUuid]], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call it before anything is published; takes up to `FIRST_SLICES_S`."""
        self._own_node, self._was_known = own_node, False
        self._clock, self._began = clock, clock()
        self._inventory, self._publisher = inventory, publisher
        self._seen: tuple[object, ...] = ()
        self._known_gpus: frozenset[GpuUuid] = frozenset()
        self._drain = DrainTaint(own_node.current, partial(tell, own_node, events), on_undrain)
        self._second = SecondPublisher(
            own_node.current,
            lambda: publisher.other_pools(self._gpus(inventory.current())),
            driver,
            SecondPublisherFile(folder),
            allowed=allow_second,
            clock=clock,
        )
        self.amend, self.report = self._drain.amend, self._second.report
        if own_node.current() is not None:  # the API server answers
            publisher.wait_listed(FIRST_SLICES_S)
        self.look()

    def _gpus(self, snapshot: Snapshot) -> frozenset[GpuUuid]:
        """The GPUs that another driver must not publish: the last known ones, also while none can be read."""
        self._known_gpus = frozenset(gpu.uuid for gpu in snapshot.gpus) or self._known_gpus
        return self._known_gpus

    @property
    def problem(self) -> str | None:
        """The reason why devices are withdrawn or not published yet; None while they are published."""
        return self.conflict or (None if self.is_known else self._own_node.problem)

    @property
    def conflict(self) -> str | None:
        return self._second.problem

    @property
    def is_known(self) -> bool:
        """Return whether the Node was read, or `FIRST_NODE_S` has passed without it."""
        return self._own_node.wait_first(0.0) or self._clock() - self._began >= FIRST_NODE_S

    @property
    def remarks(self) -> list[str]:
        """One message for each drain and each allowed second publisher."""
        return [*self._drain.remarks, *self._second.remarks]

    def call_after_changes(self, callback: Callable[[], None]) -> None:
        """Call ``callback``, which must not block, when `look` may find a change. For one caller."""
        self._own_node.subscribe(callback)
        self._inventory.subscribe(lambda _: callback())
        self._publisher.on_notice(callback)

    def is_waiting(self) -> bool:
        """Return whether `look` must be repeated without a notification."""
        return not self._was_known or self._second.is_waiting or self._drain.has_news

    def look(self) -> bool:
        """Return whether the published devices change. Sends no request and skips unchanged objects: it is called
        often."""
        seen = (self._own_node.current(), self._inventory.current(), self._publisher.noticed)
        if not self.is_waiting() and seen == self._seen:
            return False
        self._seen = seen
        known, self._was_known = self._was_known, self.is_known
        return any([self._was_known != known, self._drain.look(), self._second.look()])

    def follow(self, publish: Callable[[], None]) -> None:
        if self.look():
            publish()


class DrainTaint:
    """The taint of drained GPUs. One thread calls ``look``. ``node`` returns the last known Node. ``on_undrain`` is
    called with the undrained GPUs: undraining confirms that the administrator reset or repaired them."""

    def __init__(
        self,
        node: Callable[[], OwnNode | None],
        tell: Tell,
        on_undrain: Callable[[Collection[GpuUuid]], None] = lambda _: None,
    ) -> None:
        self._node, self._tell, self._on_undrain = node, tell, on_undrain
        self._drained: frozenset[GpuUuid] = frozenset()
        self._request = NOT_DRAINED  # replaced as a whole, so that any thread reads it without a lock
        self._names: tuple[str, ...] = ()
        self._unknown_names: tuple[str, ...] = ()
        self._reported: tuple[str, ...] = ()

    @property
    def has_news(self) -> bool:
        return self._unknown_names != self._reported

    def look(self) -> bool:
        """Apply the annotation; return whether the request changed. Sends no request."""
        node = self._node()
        if node is None:
            return False
        before, self._request = self._request, DrainRequest.of(node.annotations.get(DRAIN_ANNOTATION))
        self._warn()
        if self._request == before:
            return False
        if back := frozenset(gpu for gpu in self._drained if not self._request.covers(gpu)):
            self._on_undrain(back)
        asked = "all GPUs of this node" if self._request.every else self._request.text or "none"
        log.info("GPUs to drain", extra={"by": f"annotation {DRAIN_ANNOTATION}", "gpus": asked})
        if self._request.text is None:
            self._tell("Normal", "GpusUndrained", "no GPU of this node is drained; all GPUs accept new claims")
        else:
            self._tell("Normal", "GpusDrained", f"drained: {asked} ({_BY}); new claims do not get them")
        return True

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        request = self._request
        drained = [gpu for gpu in snapshot.gpus if request.covers(gpu.uuid)]
        metrics.drained.set(len(drained))
        self._drained = frozenset(gpu.uuid for gpu in drained)
        self._names = tuple(gpu.device_name for gpu in drained)
        known = {gpu.uuid for gpu in snapshot.gpus} | {gpu.label for gpu in snapshot.left_out}
        self._unknown_names = (*request.unknown, *(sorted(request.gpus - known) if snapshot.gpus else ()))
        found = {gpu.uuid: terms_of(terms, gpu.uuid) for gpu in drained}
        return {gpu: replace(of, taints=(*of.taints, TAINT)) for gpu, of in found.items()}

    @property
    def remarks(self) -> list[str]:
        """A message about the drained GPUs, and one about unknown ones in the annotation."""
        found = [f"drained, so new claims do not get them: {', '.join(self._names)} ({_BY})"] if self._names else []
        return [*found, *([_unknown(self._unknown_names)] if self._unknown_names else [])]

    def _warn(self) -> None:
        names = self._unknown_names
        if names and names != self._reported:
            self._tell("Warning", "DrainUnknownGpu", _unknown(names))
        self._reported = names


def _unknown(words: tuple[str, ...]) -> str:
    shown = ", ".join(word[:60] for word in words[:_SHOWN]) + (", ..." if len(words) > _SHOWN else "")
    return (
        f"annotation {DRAIN_ANNOTATION} names unknown GPUs: {shown}; use `all` or a comma-separated list of UUIDs of "
        "this node's GPUs"
    )


WITHDRAW_AFTER_S: Final = 10.0
OFFER_AFTER_S: Final = 60.0
YIELD_S: Final = 120.0
"""Twice the time of the first driver: the two do not begin to wait at exactly the same time."""
RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")
EVENT: Final = "SecondPublisher"
NAME: Final = "second-publisher.json"
MAX_BYTES: Final = 64 * 1024


class SecondPublisherFile:
    """A file in ``folder`` that exists while devices are withdrawn, for a restart while allocatable is empty because
    the device plugin restarts, too. No method raises."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> frozenset[str] | None:
        """The second publishers that were found, none for a device plugin; None without the file. A file that cannot be
        read counts as one that names no driver."""
        try:
            found = json.loads(read_plain(self._path, MAX_BYTES))["drivers"]
            return frozenset(text for text in found if isinstance(text, str))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("cannot read second publisher state", extra={"file": self._path, "reason": error})
            return frozenset()

    def write(self, drivers: Collection[str]) -> None:
        try:
            replace_file(self._path, json.dumps({"version": 1, "drivers": sorted(drivers)}).encode())
        except OSError as error:
            log.warning("cannot save second publisher state; it will be lost on restart", extra={"reason": error})

    def remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot remove second publisher state; a restart will wait for it", extra={"reason": error})


class WithdrawalState(Struct, frozen=True, kw_only=True):
    """Withdrawal of the devices. ``since`` is when the opposite was first found, ``found`` the last result."""

    withdrawn: bool = False
    since: float | None = None
    found: tuple[str, ...] = ()


def judge(
    state: WithdrawalState,
    found: tuple[str, ...],
    now: float,
    *,
    at_once: bool = False,
    offer_after_s: float = OFFER_AFTER_S,
) -> WithdrawalState:
    """The state after a poll at ``now`` (seconds) that found these second publishers. ``at_once``: the process has
    just started, so they published before it."""
    if bool(found) == state.withdrawn:
        return replace(state, since=None, found=found)
    since = now if state.since is None else state.since
    limit_s = offer_after_s if state.withdrawn else 0.0 if at_once else WITHDRAW_AFTER_S
    if now - since >= limit_s:
        return WithdrawalState(withdrawn=not state.withdrawn, found=found)
    return replace(state, since=since, found=found)


def found_in(allocatable: Mapping[str, str], pools: Sequence[OtherPool]) -> tuple[str, ...]:
    """The second publishers, each as the beginning of a message."""
    offered = [f"{name}: {amount}" for name, amount in sorted(allocatable.items()) if _counts(name, amount)]
    some = ", ".join(offered[:_SHOWN]) + (", ..." if len(offered) > _SHOWN else "")
    plugin = [f"a device plugin offers {some} on this node"] if offered else []
    drivers = [
        f"driver {pool.driver} publishes {len(pool.gpus)} of this node's GPUs in pool {pool.pool}" for pool in pools
    ]
    return (*plugin, *drivers[:_SHOWN])


class SecondPublisher:
    """Withdraws devices while a second publisher offers the same GPUs: each GPU could be allocated twice.

    A device plugin is found in this node's allocatable: ``nvidia.com/gpu*`` or ``nvidia.com/mig-*`` above 0. An
    extended resource of a DeviceClass never appears there (kubernetes/kubernetes pkg/kubelet/nodestatus/setters.go;
    KEP-5004). Another DRA driver, or another pool of this driver, publishes the same UUIDs in ResourceSlices of this
    node.

    Two of these drivers with different names would both withdraw and publish again, forever. So the driver whose name
    sorts later waits `YIELD_S` before it publishes again. GPUs that claims have stay published.

    ``look`` and ``report`` from one thread; the rest from any. ``allowed`` reports and withdraws nothing. Devices that
    were withdrawn before a restart stay so for at least `OFFER_AFTER_S`.
    """

    def __init__(
        self,
        node: Callable[[], OwnNode | None],
        pools: Callable[[], Sequence[OtherPool]],
        driver: str,
        file: SecondPublisherFile,
        *,
        allowed: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._pools, self._allowed, self._clock = node, pools, allowed, clock
        self._driver, self._file = driver, file
        self._began = clock()
        before = file.read()
        self._offer_after_s = self._patience(before or ())
        # Replaced as a whole, so that any thread reads it without a lock.
        self._standing = WithdrawalState(withdrawn=before is not None)
        self._news: str | None = None

    @property
    def problem(self) -> str | None:
        state = self._standing
        return _message(state, self._offer_after_s) if state.withdrawn and not self._allowed else None

    @property
    def remarks(self) -> list[str]:
        """A message while a second publisher is allowed or not yet acted on."""
        state = self._standing
        if not state.found or self.problem is not None:
            return []
        return [f"second publisher: {'; '.join(state.found)}"]

    @property
    def is_waiting(self) -> bool:
        return self._standing.since is not None

    def look(self) -> bool:
        """Return whether the published devices change. Sends no request."""
        now = self._clock()
        node = self._node()
        before, pools = self._standing, self._pools()
        found = found_in(node.allocatable if node is not None else {}, pools)
        if node is None and not found and before.withdrawn:
            return False  # a device plugin may still offer GPUs
        drivers = {pool.driver for pool in pools}
        if found:
            self._offer_after_s = self._patience(drivers)
        at_once = now - self._began < WITHDRAW_AFTER_S
        self._standing = judge(before, found, now, at_once=at_once, offer_after_s=self._offer_after_s)
        withdrawn = self._standing.withdrawn
        metrics.second_publisher.set(withdrawn and not self._allowed)
        if withdrawn == before.withdrawn:
            return False
        facts = {"found": "; ".join(found or before.found), "allowed": self._allowed}
        if withdrawn:
            self._file.write(drivers)
            log.warning("second publisher of this node's GPUs found", extra=facts)
            self._news = f"{_message(self._standing, self._offer_after_s)}{_ALLOWED if self._allowed else ''}"
        else:
            self._file.remove()
            log.info("second publisher no longer found", extra=facts)
            self._news = None
        return not self._allowed

    def _patience(self, drivers: Iterable[str]) -> float:
        return YIELD_S if any(driver < self._driver for driver in drivers) else OFFER_AFTER_S

    def report(self, warn: Warn) -> None:
        if self._news is not None and warn(EVENT, self._news):
            self._news = None


_ALLOWED: Final = ". They stay published, because --allow-second-publisher is set: assign each GPU to one driver"


def _message(state: WithdrawalState, offer_after_s: float) -> str:
    if not state.found:
        return (
            "devices are withdrawn: a second publisher of this node's GPUs was found; they are published again "
            f"{offer_after_s:.0f} s after it was last found"
        )
    return (
        f"devices are withdrawn, because each GPU could be allocated twice: {'; '.join(state.found)}. Remove one of "
        "the two from this node"
    )


def _counts(name: str, amount: str) -> bool:
    if not name.startswith(RESOURCES):
        return False
    try:
        return Quantity.parse(amount).as_int() > 0
    except ValueError:
        return True

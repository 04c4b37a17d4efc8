"""Withdraws devices while something else offers the same GPUs: each could be given to two pods.

Both are detected without requests:

- A device plugin: this node's allocatable has ``nvidia.com/gpu*`` or ``nvidia.com/mig-*`` above 0 (the mixed MIG
  strategy shows ``nvidia.com/gpu: 0``). An extended resource of a DeviceClass never appears there: the kubelet takes
  allocatable from its device manager (kubernetes/kubernetes pkg/kubelet/nodestatus/setters.go; KEP-5004).
- Another DRA driver, or another pool of this driver: its ResourceSlices of this node name the same UUIDs.

Two of these drivers under different names would both withdraw and both offer again, for ever. So the driver whose name
comes later waits `YIELD_S` before it offers again. A driver whose GPUs have claims keeps those GPUs published, so it
continues, whatever its name; where both have claims, both stay withdrawn until those of one end.

``--allow-second-publisher`` is for a migration in which the GPUs are divided by hand. `judge` decides, without I/O.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.files import replace_file
from dra_driver.core.quantity import Quantity
from dra_driver.core.telemetry import metrics
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.node_events import Warn
from dra_driver.node.slices import Neighbour

log = logging.getLogger(__name__)

WITHDRAW_AFTER_S: Final = 10.0
OFFER_AFTER_S: Final = 60.0
YIELD_S: Final = 120.0
"""Twice the time of the other driver: the two do not begin to wait at exactly the same time."""
RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-")
EVENT: Final = "SecondPublisher"
_SHOWN: Final = 4
NAME: Final = "second-publisher.json"
MAX_BYTES: Final = 64 * 1024


class SecondPublisherFile:
    """A file in ``folder`` that exists while devices are withdrawn. No method raises: only a restart needs the file.

    A device plugin that restarts shows nothing in the Node's allocatable for some seconds. A node process that starts
    just then would publish the same GPUs.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def read(self) -> frozenset[str] | None:
        """The other drivers that were found, none for a device plugin alone; None when nothing was found.

        A file that cannot be read counts as one that names no driver.
        """
        try:
            with self._path.open("rb") as file:
                found = json.loads(file.read(MAX_BYTES))["drivers"]
            return frozenset(text for text in found if isinstance(text, str))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("the note of a second publisher cannot be read", extra={"file": self._path, "reason": error})
            return frozenset()

    def write(self, drivers: Collection[str]) -> None:
        """Something else offers the GPUs, these drivers among it."""
        try:
            replace_file(self._path, json.dumps({"version": 1, "drivers": sorted(drivers)}).encode())
        except OSError as error:
            log.warning("a second publisher cannot be noted; a restart forgets it", extra={"reason": error})

    def remove(self) -> None:
        """Nothing else offers them any more."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the note of a second publisher stays; a restart waits for it", extra={"reason": error})


class Standing(Struct, frozen=True, kw_only=True):
    """Whether devices are withdrawn. ``since`` is when the opposite was first seen, ``found`` what was last found."""

    withdrawn: bool = False
    since: float | None = None
    found: tuple[str, ...] = ()


def judge(
    standing: Standing,
    found: tuple[str, ...],
    now: float,
    *,
    at_once: bool = False,
    offer_after_s: float = OFFER_AFTER_S,
) -> Standing:
    """The standing after a look at ``now`` (seconds) that found these second publishers.

    ``at_once``: the look is of a process that has just started; what it finds was there before.
    """
    if bool(found) == standing.withdrawn:
        return replace(standing, since=None, found=found)
    since = now if standing.since is None else standing.since
    limit_s = offer_after_s if standing.withdrawn else 0.0 if at_once else WITHDRAW_AFTER_S
    if now - since >= limit_s:
        return Standing(withdrawn=not standing.withdrawn, found=found)
    return replace(standing, since=since, found=found)


def found_in(allocatable: Mapping[str, str], pools: Sequence[Neighbour]) -> tuple[str, ...]:
    """The second publishers, each as the beginning of a sentence."""
    offered = [f"{name}: {amount}" for name, amount in sorted(allocatable.items()) if _counts(name, amount)]
    some = ", ".join(offered[:_SHOWN]) + (", ..." if len(offered) > _SHOWN else "")
    plugin = [f"a device plugin offers {some} on this node"] if offered else []
    drivers = [
        f"driver {pool.driver} publishes {len(pool.gpus)} of this node's GPUs in pool {pool.pool}" for pool in pools
    ]
    return (*plugin, *drivers[:_SHOWN])


class SecondPublisher:
    """``look`` and ``report`` from one thread; the rest from any. ``allowed`` reports and withdraws nothing.

    ``node`` returns the last known Node, ``pools`` what else publishes GPUs of this node; ``driver`` is the own name.
    With ``file``, devices that were withdrawn before a restart are withdrawn after it, for `OFFER_AFTER_S` at least.
    """

    def __init__(
        self,
        node: Callable[[], OwnNode | None],
        pools: Callable[[], Sequence[Neighbour]],
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
        self._standing = Standing(withdrawn=before is not None)
        self._news: str | None = None

    @property
    def problem(self) -> str | None:
        """Why devices are withdrawn, as a sentence; None while they are not."""
        standing = self._standing
        return _sentence(standing, self._offer_after_s) if standing.withdrawn and not self._allowed else None

    @property
    def remarks(self) -> list[str]:
        """A sentence where a second publisher is allowed or has just come."""
        standing = self._standing
        if not standing.found or self.problem is not None:
            return []
        return [f"second publisher: {'; '.join(standing.found)}"]

    @property
    def is_waiting(self) -> bool:
        """Whether time alone will change the standing."""
        return self._standing.since is not None

    def look(self) -> bool:
        """Whether what is to be published changed. Sends no request."""
        now = self._clock()
        node = self._node()
        before, pools = self._standing, self._pools()
        found = found_in(node.allocatable if node is not None else {}, pools)
        if node is None and not found and before.withdrawn:
            return False  # a device plugin may still be there
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
            log.warning("something else offers this node's GPUs", extra=facts)
            self._news = f"{_sentence(self._standing, self._offer_after_s)}{_ALLOWED if self._allowed else ''}"
        else:
            self._file.remove()
            log.info("nothing else offers this node's GPUs any more", extra=facts)
            self._news = None
        return not self._allowed

    def _patience(self, drivers: Iterable[str]) -> float:
        return YIELD_S if any(driver < self._driver for driver in drivers) else OFFER_AFTER_S

    def report(self, warn: Warn) -> None:
        """Record an event for a second publisher, once."""
        if self._news is not None and warn(EVENT, self._news):
            self._news = None


_ALLOWED: Final = ". They stay, because --allow-second-publisher is set: divide the GPUs by hand"


def _sentence(standing: Standing, offer_after_s: float) -> str:
    if not standing.found:
        return (
            "devices are withdrawn: a second publisher of this node's GPUs has gone; they are offered again "
            f"{offer_after_s:.0f} s after that"
        )
    return (
        f"devices are withdrawn, because each GPU could be given to two pods: {'; '.join(standing.found)}. Keep one of "
        "the two off this node"
    )


def _counts(name: str, amount: str) -> bool:
    if not name.startswith(RESOURCES):
        return False
    try:
        return Quantity.parse(amount).as_int() > 0
    except ValueError:
        return True

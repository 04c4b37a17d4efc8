"""Index of allocated claims: which claims use a device, and for which pods.

Shares and whole devices are treated alike. Admin access does not reserve a device, so it is left out. `NodeHolders`
numbers the claims of one node, so that nodes whose devices are used alike, by different claims, are explained once.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dra_driver.core.text import listed
from dra_driver.kube.devices import results_of, users_of
from dra_driver.kubectl.explain.subject import Wire, label_of
from dra_driver.scheduler.allocation import DeviceId

_MARK: Final = re.compile("\x00(\\d+)\x00")


class Holders:
    """Claims by device, and pods by claim. Immutable."""

    def __init__(self, claims: Iterable[Wire]) -> None:
        self._claims: dict[DeviceId, list[str]] = {}
        self._pods: dict[str, list[str]] = {}
        self._consumed: dict[tuple[DeviceId, str], Wire] = {}
        self._allocated_by_pool: dict[tuple[str, str], list[str]] = {}
        for claim in claims:
            label = label_of(claim)
            self._pods[label] = [str(user.get("name")) for user in users_of(claim)]
            for result in results_of(claim):
                if not result.get("adminAccess"):
                    device = DeviceId(result["driver"], result["pool"], result["device"])
                    self._claims.setdefault(device, []).append(label)
                    self._consumed[device, label] = result.get("consumedCapacity") or {}
                    self._allocated_by_pool.setdefault(device[:2], []).append(device.device)

    def claims(self, device: DeviceId) -> list[str]:
        return self._claims.get(device, [])

    def consumed(self, device: DeviceId, claim: str, capacity: str) -> str:
        """Returns what the claim's share consumes of a capacity of the device, "" when unknown."""
        return str(self._consumed.get((device, claim), {}).get(capacity) or "")

    def allocated_in(self, driver: str, pool: str) -> list[str]:
        return self._allocated_by_pool.get((driver, pool), [])

    def label_with_pods(self, claim: str) -> str:
        """Returns the claim with its pods: ``team-a/train (pod train-0)``."""
        pods = self._pods.get(claim) or []
        if not pods:
            return f"{claim} (no pod)"
        return f"{claim} (pod{'s' if len(pods) > 1 else ''} {listed(pods)})"


class NodeHolders(Holders):
    """The holders of one node's devices; claims appear in sentences as marks, which `named` replaces.

    ``like`` is equal for nodes on which the same devices are used in the same way, by whichever claims.
    """

    def __init__(self, holders: Holders, pools: Sequence[tuple[str, str]]) -> None:
        self._claims, self._pods, self._consumed = holders._claims, holders._pods, holders._consumed
        self._allocated_by_pool = holders._allocated_by_pool
        self._numbers: dict[str, int] = {}
        uses: list[Any] = []
        for place, (driver, pool) in enumerate(pools):
            for name in sorted(set(holders.allocated_in(driver, pool))):
                device = DeviceId(driver, pool, name)
                claims = holders.claims(device)
                users = tuple(self._numbers.setdefault(claim, len(self._numbers)) for claim in claims)
                amounts = tuple(tuple(sorted(self._consumed.get((device, claim), {}).items())) for claim in claims)
                uses.append((place, name, users, amounts))
        self.like = tuple(uses)

    def label_with_pods(self, claim: str) -> str:
        number = self._numbers.get(claim)
        return super().label_with_pods(claim) if number is None else f"\x00{number}\x00"

    def named(self, text: str) -> str:
        """Returns the text with the claims of this node and their pods in place of the marks."""
        if "\x00" not in text:
            return text
        labels = {str(number): claim for claim, number in self._numbers.items()}
        return _MARK.sub(
            lambda mark: Holders.label_with_pods(self, labels[mark[1]]) if mark[1] in labels else mark[0], text
        )

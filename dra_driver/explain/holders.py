"""Index of allocated claims: which claims use a device, and for which pods.

Shares and whole devices are treated alike. Admin access does not reserve a device, so it is left out.
"""

from collections.abc import Iterable

from dra_driver.allocation import DeviceId
from dra_driver.explain.objects import Wire, label_of, listed, results_of, users_of


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
        """Returns the names of the pool's allocated devices."""
        return self._allocated_by_pool.get((driver, pool), [])

    def label_with_pods(self, claim: str) -> str:
        """Returns the claim with its pods: ``team-a/train (pod train-0)``."""
        pods = self._pods.get(claim) or []
        if not pods:
            return f"{claim} (no pod)"
        return f"{claim} (pod{'s' if len(pods) > 1 else ''} {listed(pods)})"

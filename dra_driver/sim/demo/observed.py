"""Reads which devices are allocated to a pod, to be compared with what its containers list."""

from dra_driver.kube.published.listing import Devices, described_devices
from dra_driver.sim.apiserver.jsonvalue import Obj, entries
from dra_driver.sim.apiserver.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.client import Client
from dra_driver.sim.objects import claim_names, extended_claim_name


def allocated_devices(pod: Obj, client: Client) -> Devices:
    """The devices allocated to the pod's claims, as ResourceSlices describe them; a share counts as its GPU."""
    claims = filter(None, [name for _, name in claim_names(pod)] + [extended_claim_name(pod)])
    results = [
        result
        for name in claims
        for result in entries(
            client.find(RESOURCE_CLAIMS, name, pod["metadata"]["namespace"]),
            "status",
            "allocation",
            "devices",
            "results",
        )
    ]
    return described_devices(results, client.list(RESOURCE_SLICES, ""))

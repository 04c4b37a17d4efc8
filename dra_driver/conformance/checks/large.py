"""The largest claims and calls that Kubernetes allows."""

import uuid
from typing import Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import PROTO, TYPES, check_devices
from dra_driver.conformance.cluster import NAMESPACE
from dra_driver.conformance.plugin import ClaimKey
from dra_driver.conformance.published import MANY, together
from dra_driver.conformance.values import ViolationError, full

CLAIMS: Final = 100
LONGEST_NAME: Final = 253


@full("large-32-devices", f"{TYPES}:1747-1749", needs=("32-devices",))
def many_devices(bench: Bench) -> None:
    """A claim with 32 devices is prepared.

    AllocationResultsMaxSize represents the maximum number of entries in allocation.devices.results: 32.
    """
    usable = [device for device in bench.scheduler.devices() if not device.is_blocked]
    chosen = together(bench.slices(), usable, MANY)
    claim = bench.claim(keys={device.key for device in chosen}, count=MANY)
    devices = bench.prepared(claim)
    check_devices(bench, claim, devices)
    if problem := bench.unresolved(devices):
        raise ViolationError(f"a claim with {MANY} devices: {problem}")
    bench.unprepared(claim.key)


@full("large-100-claims", f"{PROTO}:89-95")
def many_claims(bench: Bench) -> None:
    """A call with 100 claims gets 100 entries.

    All claims in the request must have an entry in the response. A message has at most 4 MiB.
    """
    keys = [
        ClaimKey(namespace=NAMESPACE, name=f"never-prepared-{at}" + "x" * 200, uid=str(uuid.uuid4()))
        for at in range(CLAIMS)
    ]
    bench.unprepared(*keys)


@full("large-name", "staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go (DNS1123SubdomainMaxLength)")
def long_name(bench: Bench) -> None:
    """A claim with the longest possible name is prepared.

    Names of objects are DNS subdomains of at most 253 characters.
    """
    name = (uuid.uuid4().hex + ".") * 8
    claim = bench.claim(name=name[:LONGEST_NAME].rstrip("."))
    if problem := bench.unresolved(bench.prepared(claim)):
        raise ViolationError(f"a claim with a name of {LONGEST_NAME} characters: {problem}")
    bench.unprepared(claim.key)

"""The result of `survey`, as values and as JSON.

The fields are the schema of the output: new ones may be added, but none is renamed or gets another meaning.

**Units.** GPUs are counted in GPUs, memory in bytes, and requests in claims.

- ``free``: GPUs without allocated devices that a claim can get now, as a whole if the whole GPU is published.
- ``used``: GPUs allocated as a whole, or in parts (MIG devices, shares) that leave nothing for any request.
- ``fragmented``: GPUs allocated in parts, with something left for a request.
- ``unavailable``: the others, by reason: ``tainted``, ``incomplete-pool``, ``invalid-pool``, ``cordoned``,
  ``not-ready``, ``deleting`` and ``no-such-node`` (the node), ``other``.
- ``fits``: claims for the request that could be allocated now, one after another, each with the first device that the
  scheduler's allocator finds, without any other requests.
- ``bySum``: claims that the free amounts would serve if they were together: for MIG profiles, the counters left on all
  GPUs with such a device that is not allocated, divided by what one device needs; for shares, the memory left; for
  several GPUs in one claim, the free GPUs of all nodes. At most what the same GPUs would serve when unused.
- ``stranded``: ``bySum`` minus ``fits``: claims that fail only because the free amounts are not together.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field


class Gpus(Struct, frozen=True, kw_only=True, rename="camel"):
    """GPUs (or other whole devices) of a model; ``total`` is the sum of the others."""

    total: int = 0
    free: int = 0
    used: int = 0
    fragmented: int = 0
    unavailable: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


class Memory(Struct, frozen=True, kw_only=True, rename="camel"):
    """Bytes: of all GPUs, of free ones, and the rest of fragmented ones. 0 if devices do not publish their memory."""

    total: int = 0
    free: int = 0
    fragmented: int = 0


class RequestCapacity(Struct, frozen=True, kw_only=True, rename="camel"):
    """One request. ``in_use`` counts allocated devices of its kind; with ``at_least``, ``fits`` is a lower bound."""

    request: str
    profile: str = ""
    share: str = ""
    count: int = 1
    in_use: int = 0
    fits: int = 0
    by_sum: int = 0
    stranded: int = 0
    at_least: bool = False


class ModelCapacity(Struct, frozen=True, kw_only=True, rename="camel"):
    """One model of one driver, on one node or in total."""

    driver: str
    model: str
    gpus: Gpus
    memory_bytes: Memory
    requests: Sequence[RequestCapacity] = ()


class NodeCapacity(Struct, frozen=True, kw_only=True, rename="camel"):
    """One node; ``node`` is "" for devices that several nodes reach. ``problem`` is why it takes no ordinary pods."""

    node: str
    problem: str
    models: Sequence[ModelCapacity]


class StrandedShape(Struct, frozen=True, kw_only=True, rename="camel"):
    """A request that fits nowhere although the total would suffice."""

    driver: str
    model: str
    request: str
    by_sum: int
    why: str


class CapacityReport(Struct, frozen=True, kw_only=True, rename="camel"):
    """The whole report. ``notes`` say what could not be counted, ``gaps`` what could not be read."""

    source: str = ""
    server_version: str = ""
    gaps: Sequence[str] = ()
    notes: Sequence[str] = ()
    models: Sequence[ModelCapacity] = ()
    stranded_shapes: Sequence[StrandedShape] = ()
    nodes: Sequence[NodeCapacity] = ()

"""The answer of `survey`, as values and as JSON.

Owns the words and the schema: fields are added, never renamed or given another meaning.

**Units.** GPUs are counted as GPUs, memory in bytes, requests in claims: "one claim for this".

- ``free``: GPUs of which nothing is held and that a claim can have now, whole where the whole GPU is published.
- ``used``: GPUs that claims hold whole, or in parts that leave nothing that any request could have.
- ``fragmented``: GPUs of which claims hold parts (MIG devices, shares) and of which something can still be had.
- ``unavailable``: the others, by reason: ``tainted``, ``incomplete-pool``, ``invalid-pool``, ``cordoned``,
  ``not-ready``, ``deleting`` and ``no-such-node`` (the node), ``other``.
- ``fits``: how many claims for the request could be allocated now, one after another, each with the first device that
  the scheduler's allocator finds, if there were no other requests.
- ``bySum``: how many the free amounts would serve if they lay together: of MIG profiles, the counters left on all GPUs
  with such a device that is not held, divided by what one needs; of shares, the memory left; of several GPUs in one
  claim, the free GPUs of all nodes. Never more than the same GPUs would serve with nothing on them.
- ``stranded``: ``bySum`` less ``fits``: claims that only fail because what is free does not lie together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """GPUs (or other whole devices) of a model; ``total`` is the sum of the others."""

    total: int = 0
    free: int = 0
    used: int = 0
    fragmented: int = 0
    unavailable: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes: of all GPUs, of free ones, and what is left of fragmented ones. 0 where devices do not say."""

    total: int = 0
    free: int = 0
    fragmented: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCapacity:
    """One request. ``in_use`` are devices of its kind that claims hold, ``at_least`` that ``fits`` is a lower bound."""

    request: str
    profile: str = ""
    share: str = ""
    count: int = 1
    in_use: int = 0
    fits: int = 0
    by_sum: int = 0
    stranded: int = 0
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCapacity:
    """One model of one driver, on one node or in all."""

    driver: str
    model: str
    gpus: Gpus
    memory_bytes: Memory
    requests: Sequence[RequestCapacity] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """One node; ``node`` is empty for devices that several nodes reach. ``problem`` keeps ordinary pods away."""

    node: str
    problem: str
    models: Sequence[ModelCapacity]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrandedShape:
    """A request that fits nowhere although the sum would suffice."""

    driver: str
    model: str
    request: str
    by_sum: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReport:
    """``notes`` are sentences about what could not be counted, ``gaps`` about what could not be read."""

    source: str = ""
    server_version: str = ""
    gaps: Sequence[str] = ()
    notes: Sequence[str] = ()
    models: Sequence[ModelCapacity] = ()
    stranded_shapes: Sequence[StrandedShape] = ()
    nodes: Sequence[NodeCapacity] = ()


def to_wire(value: Any, kind: str = "") -> Any:
    """JSON values with names in camelCase; with ``kind`` a document that carries its schema."""
    if kind:
        return {"schemaVersion": SCHEMA_VERSION, "kind": kind, **to_wire(value)}
    if is_dataclass(value):
        return {_camel(f.name): to_wire(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_wire(item) for name, item in value.items()}
    return [to_wire(item) for item in value] if isinstance(value, list | tuple) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)

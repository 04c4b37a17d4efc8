"""GpuPolicy objects of the API server as one node keeps them: those that may be for it, as compact JSON. Pure.

A policy whose ``select.nodeNames`` does not have this node is dropped before anything else is looked at, so that it
costs a node nothing, and so that 1,000 policies of one node each are no flood. Of the rest a few hundred kilobytes are
kept at most: more policies than a node accepts are kept by name alone, so that the message can name them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.config.policy import API_VERSION, KIND, MAX_BYTES, Fields, policy_problems
from dra_driver.core.text import printable
from dra_driver.node.policy.resolve import like

MAX_KEPT_BYTES: Final = 1024 * 1024
"""Limit of all objects of one node together; a ConfigMap with policy files has as much."""


class PolicyObject(Struct, frozen=True, kw_only=True):
    """One object. ``data`` is its JSON without status and without the metadata that nodes do not use.

    ``data`` is None for an object of which only the name is kept, and ``size`` is then what it had, in bytes.
    """

    name: str
    generation: int | None
    data: bytes | None
    size: int


class ReadObject(Struct, frozen=True, kw_only=True):
    """An object as a mapping, or the ``problem`` with it in one sentence."""

    name: str
    generation: int | None
    written: Fields | None = None
    problem: str | None = None


def kept(item: Mapping[str, object], node_name: str, others: Iterable[PolicyObject], most: int) -> PolicyObject | None:
    """What a node keeps of an object; None for one that is not for this node.

    Beside ``most`` others with content, or more bytes than `MAX_KEPT_BYTES` in all, it is kept by name alone.
    """
    metadata = _mapping(item.get("metadata"))
    name, generation = str(metadata.get("name", ""))[:253], metadata.get("generation")
    patterns = _mapping(_mapping(item.get("spec")).get("select")).get("nodeNames")
    # Only a list of patterns none of which is the node's: whatever makes no sense is judged later.
    if isinstance(patterns, list) and all(isinstance(each, str) for each in patterns) and not like(node_name, patterns):
        return None
    whole = {
        "apiVersion": item.get("apiVersion", API_VERSION),  # lists leave it out of their items in some versions
        "kind": item.get("kind", KIND),
        "metadata": {"name": name},
        "spec": item.get("spec"),
    }
    data = json.dumps(whole, separators=(",", ":"), sort_keys=True).encode()
    beside = [other for other in others if other.name != name and other.data is not None]
    fits = len(beside) < most and sum(other.size for other in beside) + len(data) <= MAX_KEPT_BYTES
    return PolicyObject(
        name=name,
        generation=generation if isinstance(generation, int) and not isinstance(generation, bool) else None,
        data=data if fits and len(data) <= MAX_BYTES else None,
        size=len(data),
    )


def read_objects(objects: Sequence[PolicyObject]) -> list[ReadObject]:
    """The objects in order of their names, each valid or with its problem."""
    return [_read(found) for found in sorted(objects, key=lambda found: found.name)]


def _read(found: PolicyObject) -> ReadObject:
    name, generation = printable(found.name), found.generation
    if found.data is None:
        problem = f"the object has {found.size} bytes, and is not kept: expected at most {MAX_BYTES}"
        if found.size <= MAX_BYTES:
            problem = "the object is not kept beside so many others"
        return ReadObject(name=name, generation=generation, problem=problem)
    written: Fields = json.loads(found.data)
    if wrong := policy_problems(written):
        more = f"; and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return ReadObject(name=name, generation=generation, problem=f"{wrong[0]}{more}")
    return ReadObject(name=name, generation=generation, written=written)


def _mapping(found: object) -> Mapping[str, object]:
    return found if isinstance(found, Mapping) else {}

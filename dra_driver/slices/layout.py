"""How devices are spread over the slices of a pool, and how slices are called.

Pure. Owns the 64-device limit, the order, and the index in a slice's name. Source:
kubernetes/dynamic-resource-allocation resourceslice/resourceslicecontroller.go (1.36: name order is allocation order,
and slices are matched by the index in their name) and the limits of kubernetes/kubernetes
pkg/apis/resource/validation.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.kube.types import Device

# 128 plain devices would fit, but a single taint, counter or list attribute in the slice lowers that to 64: a health
# event must not make a slice invalid.
MAX_DEVICES = 64

# The API server cuts generateName to 58 characters and adds 5 random ones (apiserver storage/names). Cut here as
# well, so that what is validated (253 characters at most) is what is used.
MAX_GENERATE_NAME = 58

_INDEX = re.compile(r"([0-9a-f]{5,15})-")


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredSlice:
    """The content of one slice of the pool. Devices are wire objects and must not be changed.

    ``accepted`` is the spec that the API server made of exactly this content before, where that is not the same:
    fields behind a gate that is off are dropped, newer servers may add some. It counts as equal, or it would be
    written for ever.
    """

    index: int
    devices: Sequence[Device]
    accepted: Mapping[str, Any] | None = None


def split(devices: Sequence[Device], *, per_slice: int = MAX_DEVICES) -> tuple[DesiredSlice, ...]:
    """The slices of a pool, at least one: an empty slice says "no devices", no slice at all says "not known yet"."""
    starts = range(0, len(devices), per_slice) if devices else (0,)
    return tuple(
        DesiredSlice(index=index, devices=tuple(devices[start : start + per_slice]))
        for index, start in enumerate(starts)
    )


def generate_name(index: int, driver: str, node: str) -> str:
    """``00000-gpu.nvidia.com-node-a-``; the API server appends what makes it unique."""
    return f"{index:05x}-{driver}-{node}-"[:MAX_GENERATE_NAME]


def index_of(name: str) -> int | None:
    """The index in a slice's name, None when it has another form (drivers of Kubernetes 1.35 and before)."""
    match = _INDEX.match(name)
    return int(match.group(1), 16) if match else None

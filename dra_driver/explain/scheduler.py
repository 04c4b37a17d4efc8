"""Derives the scheduler's behaviour and feature gates from the cluster's version.

The gates of a running scheduler cannot be read, so the defaults of its version apply unless they are given.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_driver.allocation import V1_36, SchedulerFeatures, SchedulerQuirks
from dra_driver.errors import ConfigurationError

_VERSION: Final = re.compile(r"v?(\d{1,3})\.(\d{1,3})")
# Off before 1.36 (pkg/features/kube_features.go).
_YOUNG: Final = (
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRADeviceBindingConditions",
    "DRAConsumableCapacity",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerModel:
    """Behaviour and feature gates that `explain` assumes of the scheduler."""

    features: SchedulerFeatures = field(default_factory=SchedulerFeatures)
    quirks: SchedulerQuirks = V1_36


def scheduler_of(version: str, gates: Mapping[str, bool]) -> SchedulerModel:
    """Returns the model for a cluster of that version (1.36 when unknown). ``gates`` override the defaults."""
    found = _VERSION.match(version)
    if found is None:
        return SchedulerModel(features=SchedulerFeatures.from_gates(gates))
    major, minor = int(found[1]), int(found[2])
    defaults = dict.fromkeys(_YOUNG, False) if (major, minor) < (1, 36) else {}
    return SchedulerModel(
        features=SchedulerFeatures.from_gates({**defaults, **gates}),
        quirks=SchedulerQuirks.of_version(f"{major}.{minor}"),
    )


def gates_of(text: str) -> dict[str, bool]:
    """Parses ``A=true,B=false`` as in ``--feature-gates``. Raises ConfigurationError."""
    found = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = part.partition("=")
        if value.lower() not in ("true", "false"):
            raise ConfigurationError(f"feature gate {part[:80]!r}: expected NAME=true or NAME=false")
        found[name] = value.lower() == "true"
    return found

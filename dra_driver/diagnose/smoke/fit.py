"""The answer whether a node has a free device of a kind, and the function that gives it: `kubectl dra explain`'s."""

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from dra_driver.diagnose.smoke.kinds import TryKind
from dra_driver.kube.state import ClusterState

Wire = Mapping[str, Any]


class Fit(Struct, frozen=True, kw_only=True):
    """``busy`` is why there is nothing to try, "" if that is not why; ``answer`` is what `explain` says."""

    fits: bool
    busy: str = ""
    answer: str = ""


FitsUnder = Callable[[ClusterState], Callable[[ClusterState, Wire, Wire, TryKind], Fit]]
"""From the cluster's state to the function of one node's state, a pod, its claim and the kind."""

"""Events as events.k8s.io/v1 shows them: the same stored core/v1 objects under other field names.

Conversion: kubernetes/kubernetes pkg/apis/events/v1/conversion.go.
"""

from dra_driver.sim.apiserver.jsonvalue import Obj

_NEW_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
_OLD_NAMES = {new: old for old, new in _NEW_NAMES.items()}


def to_events_v1(event: Obj) -> Obj:
    """A core/v1 event as events.k8s.io/v1."""
    renamed = {_NEW_NAMES.get(key, key): value for key, value in event.items()}
    for field in ("reportingController", "reportingInstance"):  # always present in core/v1, omitempty here
        if not renamed.get(field):
            renamed.pop(field, None)
    return renamed | {"apiVersion": "events.k8s.io/v1"}


def from_events_v1(event: Obj) -> Obj:
    """An events.k8s.io/v1 event as core/v1, for storing; core/v1 fields pass unchanged."""
    renamed = {_OLD_NAMES.get(key, key): value for key, value in event.items()}
    return renamed | {"apiVersion": "v1"}

"""A watch over HTTP: which events a client gets, and their bytes.

With a selector, an object that starts to match is ADDED, and one that stops matching is DELETED. Also bookmarks and the
initial events of streaming lists. Sources: k8s.io/apiserver pkg/storage/cacher,
KEP-3157, KEP-956.
"""

from collections.abc import Sequence

from msgspec import Struct

from dra_driver.core.errors import GoneError
from dra_driver.sim.apiserver.api_errors import status_body, status_error
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, dump
from dra_driver.sim.apiserver.messages import ApiRequest, Target
from dra_driver.sim.apiserver.selectors import Match
from dra_driver.sim.apiserver.state import ObjectChange, Record
from dra_driver.sim.apiserver.validation import forbidden_field
from dra_driver.sim.apiserver.verbs import options_invalid, selection
from dra_driver.sim.apiserver.views import include_option, partial, table

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
DEFAULT_TIMEOUT_S = 1800
BOOKMARK_INTERVAL_S = 60.0


class WatchPlan(Struct, frozen=True, kw_only=True):
    """The options of a watch request. With ``since`` None, existing objects come first."""

    request: ApiRequest
    target: Target
    matches: Sequence[Match]
    since: int | None
    send_initial_events: bool
    bookmarks: bool
    timeout_s: float


def plan_watch(request: ApiRequest, target: Target) -> WatchPlan:
    """Parse the options of a watch. Raises InvalidObjectError (400) and 422 as the real server does."""
    sent, initial = request.query.get("resourceVersion", ""), request.query.get("sendInitialEvents")
    match = request.query.get("resourceVersionMatch", "")
    if match and initial is None:
        text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        raise options_invalid("ListOptions", forbidden_field("resourceVersionMatch", text))
    if initial is not None and match != "NotOlderThan":
        text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise options_invalid("ListOptions", forbidden_field("resourceVersionMatch", text))
    streams = request.flag("sendInitialEvents")
    from_start = streams or (not sent and initial is None) or (sent == "0" and initial is None)
    if not from_start and not sent.isdigit():
        # The real server returns 500 here, and 400 for a list.
        wrong = f'resourceVersion: Invalid value: "{sent}": strconv.ParseUint: parsing "{sent}": invalid syntax'
        raise status_error(500, "", wrong)
    timeout = request.query.get("timeoutSeconds", "")
    return WatchPlan(
        request=request,
        target=target,
        matches=selection(request, target),
        since=None if from_start else int(sent),
        send_initial_events=streams,
        bookmarks=request.flag("allowWatchBookmarks"),
        timeout_s=float(timeout) if timeout.isdigit() and int(timeout) else DEFAULT_TIMEOUT_S,
    )


class Frames:
    """Formats changes as the lines of one watch. Not thread-safe: one per connection."""

    def __init__(self, plan: WatchPlan, clock: Clock) -> None:
        self._plan = plan
        self._clock = clock
        self._as_table = plan.request.wants("Table")
        self._as_partial = plan.request.wants("PartialObjectMetadata")
        self._include = include_option(plan.request)
        self._headers = True

    def of(self, changes: Sequence[ObjectChange]) -> bytes:
        """Lines for the changes that the client gets; empty without any."""
        return b"".join(line for change in changes if (line := self._line(change)))

    def bookmark(self, revision: int, *, initial_end: bool = False) -> bytes:
        """A bookmark: a line with only the revision that the client has reached."""
        kind = self._plan.target.kind
        metadata: Obj = {"resourceVersion": str(revision)}
        if initial_end:
            metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
        obj = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}
        if self._as_table:
            obj = self._table(obj)
        elif self._as_partial:
            obj = partial(obj)
        return _frame("BOOKMARK", dump(obj))

    def gone(self, error: GoneError) -> bytes:
        return _frame("ERROR", dump(status_body(error)))

    def _line(self, change: ObjectChange) -> bytes | None:
        is_in = change.type != "DELETED" and all(match(change.record.obj) for match in self._plan.matches)
        was_in = change.previous is not None and all(match(change.previous.obj) for match in self._plan.matches)
        if is_in:
            return _frame("MODIFIED" if was_in else "ADDED", self._shape(change.record))
        if not was_in or change.previous is None:
            return None
        if change.type == "DELETED":
            return _frame("DELETED", self._shape(change.record))
        # It no longer matches: send the last version that matched, with the revision of the change.
        metadata = change.previous.obj["metadata"] | {"resourceVersion": str(change.record.revision)}
        return _frame("DELETED", self._shape(Record(change.previous.obj | {"metadata": metadata}, 0)))

    def _shape(self, record: Record) -> bytes:
        if self._as_table:
            return dump(self._table(record.obj))
        if self._as_partial:
            return dump(partial(record.obj))
        return record.json

    def _table(self, obj: Obj) -> Obj:
        metadata = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
        found = table(
            self._plan.target.kind, [obj], metadata, self._clock(), include=self._include, headers=self._headers
        )
        self._headers = False  # columns are sent once per watch
        return found


def _frame(event_type: str, body: bytes) -> bytes:
    return b'{"type":"' + event_type.encode() + b'","object":' + body + b"}\n"

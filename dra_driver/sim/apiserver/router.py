"""Route a request to a verb, a watch, a log or a proxy, and serve health, version, discovery, OpenAPI and access
reviews. Every error is an exception of `dra_driver.core.errors`."""

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import GoneError
from dra_driver.sim.apiserver import pod_subresources
from dra_driver.sim.apiserver.api_errors import bad_request, status_body, status_error
from dra_driver.sim.apiserver.discovery import discovery, openapi_document, openapi_index
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, dump
from dra_driver.sim.apiserver.messages import ApiRequest, Reply, Target, is_known_group, target_of
from dra_driver.sim.apiserver.patching import JSON_PATCH, merge
from dra_driver.sim.apiserver.pod_subresources import LogPlan, ProxyPlan, is_proxy, plan_proxy
from dra_driver.sim.apiserver.selectors import Match
from dra_driver.sim.apiserver.state import ObjectChange, Record
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.apiserver.validation import forbidden_field
from dra_driver.sim.apiserver.verbs import Verbs, include_option, options_invalid, partial, selection, table

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


VERSION: Obj = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2-embedded",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "python",
    "platform": "linux/amd64",
}
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_REVIEWS_PATH = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

RouterReply = Reply | WatchPlan | LogPlan | ProxyPlan


class Router:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._verbs = Verbs(store, clock)

    def answer(self, request: ApiRequest) -> RouterReply:
        """The reply, or a plan for what takes longer. Raises KubernetesApiError for every error response."""
        if is_proxy(request.path):
            return plan_proxy(self._store, request)
        if (target := target_of(request.path)) is not None:
            request.check_accept()
            return self._object(request, target)
        reply = self._other(request)
        if reply is None:
            if not is_known_group(request.path):
                return Reply(body=b"404 page not found\n", status=404, media_type="text/plain; charset=utf-8")
            raise status_error(404, "NotFound", "the server could not find the requested resource", {})
        return reply

    def _other(self, request: ApiRequest) -> Reply | None:
        path = request.path.rstrip("/")
        if path in _HEALTH_PATHS:
            return Reply(body=b"ok", media_type="text/plain; charset=utf-8")
        if path == "/version":
            return Reply.of(VERSION)
        if path == "/openapi/v3":
            return Reply(body=openapi_index())
        if path.startswith("/openapi/v3/"):
            body = openapi_document(path.removeprefix("/openapi/v3/"))
            return None if body is None else Reply(body=body)
        if path == _REVIEWS_PATH and request.method == "POST":  # clients with the token have all rights
            return Reply.of(request.object() | {"status": {"allowed": True}}, status=201)
        document = discovery(path)
        return None if document is None else Reply.of(document)

    def _object(self, request: ApiRequest, target: Target) -> RouterReply:
        if target.subresource in {"log", "binding", "eviction", "scale"}:
            return self._special(request, target)
        if request.method == "GET" and request.flag("watch"):
            return plan_watch(request, target)
        verbs: dict[str, Callable[[ApiRequest, Target], Reply]]
        if target.name:
            verbs = {"GET": self._verbs.get, "PUT": self._verbs.update, "PATCH": self._verbs.patch}
            if not target.subresource:
                verbs["DELETE"] = self._verbs.delete
        else:
            verbs = {"GET": self._verbs.list, "DELETE": self._verbs.delete_collection}
            if target.namespace or not target.kind.namespaced:
                verbs["POST"] = self._verbs.create
        if request.method not in verbs:
            raise _not_allowed()
        return verbs[request.method](request, target)

    def _special(self, request: ApiRequest, target: Target) -> RouterReply:
        asked = (target.subresource, request.method)
        if asked == ("log", "GET"):
            return pod_subresources.plan_log(self._store, request, target)
        if asked == ("binding", "POST"):
            return pod_subresources.bind(self._store, request, target)
        if asked == ("eviction", "POST"):
            deletion = pod_subresources.eviction(request, target)
            pod_subresources.before_eviction(self._store, target, deletion.object())
            self._verbs.delete(deletion, replace(target, subresource=""))
            return pod_subresources.accepted()
        if asked == ("scale", "GET"):
            return Reply.of(pod_subresources.read_scale(self._store, target))
        if asked == ("scale", "PUT"):
            return pod_subresources.write_scale(self._store, request.object(), target)
        if asked == ("scale", "PATCH"):
            if request.content_type == JSON_PATCH:
                raise bad_request("a scale is patched with a merge patch: JSON patches of scales are not served")
            current = pod_subresources.read_scale(self._store, target)
            return pod_subresources.write_scale(self._store, merge(current, request.object()), target)
        raise _not_allowed()


def _not_allowed() -> Exception:
    return status_error(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})

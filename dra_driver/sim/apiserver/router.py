"""Routes a request to a verb, a watch, a log or a proxy, and serves the paths that are not objects.

Those are health, version, discovery, OpenAPI and access reviews. Every error is an exception of
`dra_driver.core.errors`.
"""

from collections.abc import Callable

from msgspec.structs import replace

from dra_driver.sim.apiserver import pod_subresources
from dra_driver.sim.apiserver.api_errors import bad_request, status_error
from dra_driver.sim.apiserver.discovery import discovery, openapi_document, openapi_index
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj
from dra_driver.sim.apiserver.messages import ApiRequest, Reply, Target, is_known_group, target_of
from dra_driver.sim.apiserver.patching import JSON_PATCH, merge
from dra_driver.sim.apiserver.pod_proxy import ProxyPlan, is_proxy, plan_proxy
from dra_driver.sim.apiserver.pod_subresources import LogPlan
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.apiserver.verbs import Verbs
from dra_driver.sim.apiserver.watching import WatchPlan, plan_watch

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

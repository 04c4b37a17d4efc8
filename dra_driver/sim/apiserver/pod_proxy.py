"""GET through the subresource pods/proxy, to the processes that answer for simulated pods (`pod_ports`).

As the real server does (kubernetes/kubernetes pkg/registry/core/pod/rest/subresources.go and strategy.go,
ResourceLocation; k8s.io/apimachinery pkg/util/proxy/transport.go): the name may have a scheme and a port, without one
the first port of the pod's containers counts, the caller's credentials are not passed on, redirects are not followed,
and what cannot be reached is 503. Unlike it, only GET and http are served, and answers have an end: 16 MiB, 10 s.
"""

import http.client
import re
from time import monotonic
from typing import Final
from urllib.parse import quote, urlencode

from msgspec import Struct

from dra_driver.core.errors import KubernetesApiError
from dra_driver.sim.apiserver.api_errors import bad_request, status_error
from dra_driver.sim.apiserver.jsonvalue import Obj, entries
from dra_driver.sim.apiserver.kinds import PODS
from dra_driver.sim.apiserver.messages import ApiRequest, Reply
from dra_driver.sim.apiserver.store import Store

MAX_ANSWER_BYTES: Final = 16 << 20
ANSWER_S: Final = 10.0
_HOST: Final = "127.0.0.1"
_CHUNK: Final = 1 << 16
_PATH: Final = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/proxy(/.*)?", re.DOTALL)
_NAME: Final = re.compile(r"(?:(?P<scheme>[a-z]*):(?=.*:))?(?P<pod>[^:]+)(?::(?P<port>[^:]*))?")


class ProxyPlan(Struct, frozen=True, kw_only=True):
    """What is asked for ``pod``: ``path`` with its query, of ``port`` on loopback."""

    pod: str
    port: int
    path: str
    accept: str


def is_proxy(path: str) -> bool:
    """Whether the path is that of a pod's proxy, or below it."""
    return _PATH.fullmatch(path) is not None


def plan_proxy(store: Store, request: ApiRequest) -> ProxyPlan:
    """Find what answers for the pod. Raises NotFoundError, InvalidObjectError (400), KubernetesApiError (405, 503)."""
    match = _PATH.fullmatch(request.path)
    if match is None or request.method != "GET":
        raise status_error(405, "MethodNotAllowed", "the embedded API server proxies GET alone", {})
    namespace, path = match[1], match[3] or "/"
    named = _NAME.fullmatch(match[2])
    if named is None or named["scheme"] not in (None, "", "http"):
        raise bad_request(f"invalid pod request {match[2]!r}: expected NAME, NAME:PORT or http:NAME:PORT")
    pod = store.get(PODS, named["pod"], namespace)
    port = _port(pod, named["port"] or "")
    local = store.ports.find(namespace, named["pod"], port)
    if local is None:
        raise _unreachable(f"nothing listens on port {port} of pod {named['pod']}: its containers run no program")
    query = f"?{urlencode(request.query)}" if request.query else ""
    return ProxyPlan(pod=named["pod"], port=local, path=quote(path) + query, accept=request.accept or "*/*")


def fetch(plan: ProxyPlan, *, most_bytes: int = MAX_ANSWER_BYTES, within_s: float = ANSWER_S) -> Reply:
    """Ask, and return the answer with its own status. Raises KubernetesApiError (503).

    Blocks for ``within_s``, and at most `ANSWER_S` longer for a process that then sends nothing.
    """
    deadline = monotonic() + within_s
    connection = http.client.HTTPConnection(_HOST, plan.port, timeout=ANSWER_S)
    try:
        connection.request("GET", plan.path, headers={"Accept": plan.accept, "Connection": "close"})
        answer = connection.getresponse()
        body = _read(answer, deadline, most_bytes)
        media_type = answer.getheader("Content-Type") or "application/octet-stream"
        return Reply(body=body, status=answer.status, media_type=media_type)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(f"{error or type(error).__name__}") from error
    finally:
        connection.close()


def _port(pod: Obj, asked: str) -> int:
    """The number of a port that is given by number or name, by default the first of the containers."""
    if asked.isascii() and asked.isdigit() and len(asked) <= 5:
        return int(asked)
    found = [port for container in entries(pod, "spec", "containers") for port in entries(container, "ports")]
    number = next((port.get("containerPort") for port in found if asked in ("", port.get("name"))), None)
    if not isinstance(number, int):
        raise bad_request(f"pod {pod['metadata']['name']} has no port {asked!r}" if asked else "no port was given")
    return number


def _read(answer: http.client.HTTPResponse, deadline: float, most_bytes: int) -> bytes:
    body = bytearray()
    while chunk := answer.read1(_CHUNK):
        body += chunk
        if len(body) > most_bytes:
            raise _unreachable(f"the answer has more than {most_bytes} bytes")
        if monotonic() > deadline:
            raise _unreachable("the answer took too long")
    return bytes(body)


def _unreachable(why: str) -> KubernetesApiError:
    return status_error(503, "ServiceUnavailable", f"error trying to reach service: {why}")

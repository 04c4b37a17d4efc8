"""Pages of the web UI: routes, the values of each template, and the stream that reports changes."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import Struct
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from dra_driver.core.errors import DraError
from dra_driver.core.text import cut, gib, listed, printable, span
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import LEGEND, ClaimRow
from dra_driver.kubectl.web.access_control import AccessControl, Keys
from dra_driver.kubectl.web.fleet import NodeRow, SeenFleet, clique_of, island_of, islands_of, spots_of
from dra_driver.kubectl.web.reading import (
    BackgroundResult,
    BackgroundResults,
    LastRead,
    Periodic,
    ReadFailure,
    SeenCluster,
)
from dra_driver.kubectl.web.rows import (
    EXAMPLE,
    MAX_BYTES,
    Uses,
    ago,
    claim_views,
    event_rows,
    explain_pod,
    in_thread,
    matching,
    page_of,
    query_string,
    survey_of,
    tried,
    waiting_pods,
)
from dra_driver.kubectl.web.use_history import HEIGHT, WIDTH, UseNow, drawn

log = logging.getLogger(__name__)

HERE: Final = Path(__file__).parent
NODES_PER_PAGE: Final = 12
ROWS_PER_PAGE: Final = 50
PODS_PER_PAGE: Final = 10
MAX_STREAMS: Final = 64
MAX_TEXT: Final = 4096
"""Maximum characters of a message; cluster objects can contain 1 MiB."""
TRIES_AT_ONCE: Final = 2
FIRST_WAIT_S: Final = 2.0
LAST_WAIT_S: Final = 20.0
OLD_S: Final = 60.0
_OLD_READINGS: Final = 8
"""A state is old after ``OLD_S``, or after this multiple of its read time. Pauses last three times the read time."""
_TICK_S: Final = 0.5
_KEEP_ALIVE: Final = 30
_GRAVE: Final = ("nodes:", "pods:", "claim ", "resourceclaims:", "resourceslices:", "gpunodes:")
"""Gaps that make pages wrong or incomplete; other gaps affect only explanations."""
_SPLIT: Final = "<!--split-->"
_NOTHING: Final = SeenCluster(state=ClusterState(), statuses={}, claims=(), fleet=SeenFleet())


class SeenState(Struct, frozen=True, kw_only=True):
    """Source data of one response. ``number`` changes with the data; ``problem`` is "" if the data is current."""

    number: str
    reading: LastRead[SeenCluster] | None
    trouble: ReadFailure | None
    use_reading: LastRead[UseNow] | None
    use_trouble: ReadFailure | None
    problem: str

    @property
    def cluster(self) -> SeenCluster:
        return self.reading.value if self.reading else _NOTHING

    @property
    def use(self) -> UseNow | None:
        return self.use_reading.value if self.use_reading else None

    @property
    def uses(self) -> Uses:
        return self.use.uses if self.use else {}


class PageSources(Struct, frozen=True, kw_only=True):
    """Sources of the pages. ``use`` is None without exporters; ``about`` names the cluster."""

    cluster: Periodic[SeenCluster]
    background_results: BackgroundResults
    about: str
    use: Periodic[UseNow] | None = None


def application(sources: PageSources, keys: Keys, hosts: tuple[str, ...]) -> ASGIApp:
    pages = Pages(sources, f"/{keys.folder}")
    routes = [
        Route("/", pages.fleet),
        Route("/nodes/{node}", pages.node),
        Route("/nodes/{node}/{gpu}", pages.gpu),
        Route("/claims", pages.claims),
        Route("/claims/{namespace}/{name}", pages.claim),
        Route("/pending", pages.pending),
        Route("/pending/{namespace}/{name}", pages.pod),
        Route("/what-if", pages.what_if),
        Route("/what-if", pages.try_it, methods=["POST"]),
        Route("/capacity", pages.capacity),
        Route("/events", pages.events),
        Route("/live", pages.live),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    handlers: Mapping[Any, Any] = {404: pages.missing, 500: pages.broken}
    app = Starlette(routes=[Mount(f"/{keys.folder}", routes=routes)], exception_handlers=handlers)
    return AccessControl(app, keys, hosts)


def templates() -> Environment:
    """Return the templates: values are escaped, and unknown names are errors."""
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        finalize=_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "gib": gib,
        "span": span,
        "listed": listed,
        "plain": lambda text: printable(cut(text, MAX_TEXT)),
        "part": lambda text: quote(text, safe=""),
    }
    return found


class Pages:
    """One method per page. Methods run in the event loop and do not wait for the cluster."""

    def __init__(self, sources: PageSources, base: str) -> None:
        self._sources = sources
        self._base = base
        self._templates = templates()
        self._streams = 0
        self._tries = threading.Semaphore(TRIES_AT_ONCE)  # running explanations of pasted manifests

    async def fleet(self, request: Request) -> Response:
        query, show = _query(request), request.query_params.get("show", "")
        found = self._seen(request).cluster.fleet
        nodes = matching(found.nodes, query, _node_texts)
        if show == "free":
            nodes = [node for node in nodes if node.has_free]
        elif show == "unhealthy":
            nodes = [node for node in nodes if node.is_unhealthy]
        page = page_of(nodes, _page(request), NODES_PER_PAGE, of=len(found.nodes))
        return self._page(request, "fleet.html", page=page, totals=found.totals, show=show, query=query)

    async def node(self, request: Request) -> Response:
        found = self._seen(request).cluster.fleet.node(request.path_params["node"])
        if found is None:
            return self._gone(request, f"Node {request.path_params['node']} has no GPUs, or does not exist.")
        return self._page(request, "node.html", node=found, islands=islands_of(found), spots=spots_of(found))

    async def gpu(self, request: Request) -> Response:
        node, name = request.path_params["node"], request.path_params["gpu"]
        fleet = self._seen(request).cluster.fleet
        found = fleet.gpu(node, name)
        if found is None:
            return self._gone(request, f"Node {node} has no GPU {name}.")
        use = self._seen(request).use
        holders = []
        for part in (*found.parts, *found.admins):
            measured = use.uses.get((part.namespace, part.claim, node, part.device, part.share_id)) if use else None
            holders.append((part, measured, drawn(use.points(measured) if use and measured else [], part.memory_bytes)))
        memory = use.gpus.get((node, name)) if use else None
        total = memory.total_bytes if memory and memory.total_bytes else found.memory_bytes
        whole = drawn(use.points_of_gpu(node, name) if use else [], total)
        return self._page(
            request,
            "gpu.html",
            gpu=found,
            holders=holders,
            memory=memory,
            whole=whole,
            size=(WIDTH, HEIGHT),
            island=island_of(found, fleet),
            clique=clique_of(found, fleet),
            numa=found.place.numa_text,
        )

    async def claims(self, request: Request) -> Response:
        query, show, rows = _query(request), request.query_params.get("show", ""), self._seen(request).cluster.claims
        found = [row for row in matching(rows, query, _claim_texts) if show in ("", row.state)]
        page = page_of(found, _page(request), ROWS_PER_PAGE, of=len(rows))
        views = claim_views(page.rows, self._seen(request).cluster.fleet, self._seen(request).uses)
        return self._page(request, "claims.html", page=page, views=views, query=query, show=show)

    async def claim(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        found = [row for row in self._seen(request).cluster.claims if (row.namespace, row.name) == (namespace, name)]
        if not found:
            return self._gone(request, f"Claim {name} does not exist in namespace {namespace}.")
        view = claim_views(found, self._seen(request).cluster.fleet, self._seen(request).uses)[0]
        about = ("ResourceClaim", namespace, name)
        rows = event_rows(self._seen(request).cluster.state.events)
        events = [each for each in rows if (each.kind, each.namespace, each.name) == about]
        return self._page(request, "claim.html", view=view, events=events[:20])

    async def pending(self, request: Request) -> Response:
        query = _query(request)
        every = waiting_pods(self._seen(request).cluster.state)
        found = matching(every, query, lambda each: f"{each.namespace}/{each.name} {each.owner}")
        page = page_of(found, _page(request), PODS_PER_PAGE, of=len(every))
        rows = [(each, self._explained(self._seen(request), each.namespace, each.name)) for each in page.rows]
        return self._page(request, "pending.html", page=page, rows=rows, query=query)

    async def pod(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        every = [pod["metadata"] for pod in self._seen(request).cluster.state.pods]
        if all((each.get("namespace") or "default", each["name"]) != (namespace, name) for each in every):
            return self._gone(request, f"Pod {name} does not exist in namespace {namespace}.")
        answer = self._explained(self._seen(request), namespace, name)
        return self._page(request, "pod.html", namespace=namespace, name=name, answer=answer)

    async def capacity(self, request: Request) -> Response:
        answer = self._worked_out(self._seen(request), "capacity", survey_of)
        return self._page(request, "capacity.html", answer=answer, legend=LEGEND)

    async def events(self, request: Request) -> Response:
        query = _query(request)
        every = event_rows(self._seen(request).cluster.state.events)
        found = matching(every, query, lambda each: f"{each.reason} {each.about} {each.message} {each.source}")
        page = page_of(found, _page(request), ROWS_PER_PAGE, of=len(every))
        return self._page(request, "events.html", page=page, query=query)

    async def what_if(self, request: Request) -> Response:
        return self._page(request, "what_if.html", text=EXAMPLE, namespace="default", asked=False)

    async def try_it(self, request: Request) -> Response:
        try:
            fields = await _form(request)
        except ValueError as error:
            return self._page(request, "gone.html", status=413, sentence=str(error))
        text, namespace = fields.get("manifest", ""), fields.get("namespace", "") or "default"
        shown = self._render(request, "what_if.html", text=text, namespace=namespace, asked=True)
        head, _, tail = shown.partition(_SPLIT)
        return StreamingResponse(self._tried(request, head, tail, text, namespace), media_type="text/html")

    async def live(self, request: Request) -> Response:
        if self._streams >= MAX_STREAMS:
            return Response(status_code=503)
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._changes(request), media_type="text/event-stream", headers=headers)

    async def missing(self, request: Request, error: Exception) -> Response:  # noqa: ARG002
        return self._gone(request, "Page not found.")

    async def broken(self, request: Request, error: Exception) -> Response:  # noqa: ARG002
        return Response(
            "This page failed. See the error in the terminal or log of the command.\n", 500, media_type="text/plain"
        )

    def _seen(self, request: Request) -> SeenState:
        """Return the state of this request, the same at each call."""
        found: SeenState = request.scope.get("seen") or self._look()
        request.scope["seen"] = found
        return found

    def _look(self) -> SeenState:
        cluster, use = self._sources.cluster, self._sources.use
        # Read before the values: a value that changes in between is sent again.
        changes = (cluster.changes, use.changes if use else 0, self._sources.background_results.changes)
        reading, trouble = cluster.asked(), cluster.trouble
        problem = "readings fail" if trouble else "not read yet" if reading is None else ""
        if reading and not trouble and _age_s(reading) > max(OLD_S, _OLD_READINGS * reading.took_s):
            problem = "old"
        return SeenState(
            number="-".join(map(str, (*changes, problem.partition(" ")[0]))),
            reading=reading,
            trouble=trouble,
            use_reading=use.asked() if use else None,
            use_trouble=use.trouble if use else None,
            problem=problem,
        )

    def _worked_out(
        self, seen: SeenState, key: Hashable, compute: Callable[[ClusterState], object]
    ) -> BackgroundResult | None:
        if seen.reading is None:
            return None
        return self._sources.background_results.ask(key, seen.reading.number, lambda: compute(seen.cluster.state))

    def _explained(self, seen: SeenState, namespace: str, name: str) -> BackgroundResult | None:
        return self._worked_out(seen, ("pod", namespace, name), lambda state: explain_pod(state, namespace, name))

    def _page(self, request: Request, template: str, status: int = 200, **values: object) -> Response:
        return HTMLResponse(self._render(request, template, **values), status_code=status)

    def _gone(self, request: Request, sentence: str) -> Response:
        return self._page(request, "gone.html", status=404, sentence=sentence)

    def _render(self, request: Request, template: str, **values: object) -> str:
        now, seen = datetime.now(UTC), self._seen(request)
        reading = seen.reading
        shown = self._templates.get_template(template).render(
            base=self._base,
            path=request.url.path.removeprefix(self._base),
            about=self._sources.about,
            seen=seen,
            reading=reading,
            age_s=_age_s(reading) if reading else 0.0,
            gaps=(gaps := reading.value.gaps if reading else ()),
            unread=lambda kind: any(gap.startswith(f"{kind}:") for gap in gaps),
            grave=[gap for gap in gaps if gap.startswith(_GRAVE)],
            version=reading.value.state.server_version if reading else "",
            use=seen.use,
            has_use=self._sources.use is not None,
            ago=lambda moment: ago(moment, now),
            now=now,
            query_string=query_string,
            **values,
        )
        return str(shown)

    async def _tried(self, request: Request, head: str, tail: str, text: str, namespace: str) -> AsyncIterator[str]:
        yield head
        async for piece in self._answers(request, text, namespace):
            yield piece
        yield tail

    async def _answers(self, request: Request, text: str, namespace: str) -> AsyncIterator[str]:
        state = self._seen(request).cluster.state
        if not self._tries.acquire(blocking=False):
            yield self._render(request, "_problem.html", sentence="Two trials are already running. Try again.")
            return
        answer = in_thread(lambda: tried(state, text, namespace), self._tries.release)
        try:
            try:
                reports = await asyncio.wait_for(asyncio.shield(answer), FIRST_WAIT_S)
            except TimeoutError:
                yield '<p class="quiet">Still running …</p>'
                reports = await asyncio.wait_for(asyncio.shield(answer), LAST_WAIT_S)
        except TimeoutError:
            sentence = f"No result within {LAST_WAIT_S:.0f} s. Use kubectl dra explain -f, which has no time limit."
            yield self._render(request, "_problem.html", sentence=sentence)
        except DraError as error:
            yield self._render(request, "_problem.html", sentence=printable(str(error)))
        except Exception:  # the response has begun: it needs a message
            log.exception("what-if trial failed")
            sentence = "This trial failed. See the error in the terminal or log of the command."
            yield self._render(request, "_problem.html", sentence=sentence)
        else:
            yield self._render(request, "_reports.html", reports=reports)

    async def _changes(self, request: Request) -> AsyncIterator[str]:
        self._streams += 1
        try:
            known, silent = None, 0
            yield "retry: 2000\n\n"
            while not await request.is_disconnected():
                seen = self._look()
                silent += 1
                if (now := (seen.number, seen.reading.at if seen.reading else None)) != known or silent >= _KEEP_ALIVE:
                    known, silent = now, 0
                    age = f"{_age_s(seen.reading):.0f} {seen.reading.at:%H:%M:%S}" if seen.reading else "0 -"
                    yield f"event: state\ndata: {seen.number} {age} {seen.problem or 'live'}\n\n"
                await asyncio.sleep(_TICK_S)
        finally:
            self._streams -= 1


def _age_s(reading: LastRead[Any]) -> float:
    return max(0.0, (datetime.now(UTC) - reading.at).total_seconds())


def _visible(value: object) -> object:
    """Replace characters that change the display of other characters, such as the direction; keep lines."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(each if each.isprintable() or each in "\r\n\t" else "?" for each in value)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a small form. Raises ValueError if it is too large."""
    most, body = 4 * MAX_BYTES, bytearray()  # form encoding can triple each byte
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise ValueError(f"More than {MAX_BYTES >> 10} KiB: paste fewer objects.")
    except ClientDisconnect:
        return {}
    fields = parse_qs(bytes(body).decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=8)
    return {name: values[0] for name, values in fields.items()}


def _query(request: Request) -> str:
    return request.query_params.get("q", "")[:100]


def _page(request: Request) -> str:
    return request.query_params.get("page", "1")


def _node_texts(node: NodeRow) -> str:
    products = {gpu.product for gpu in node.gpus}
    claims = {f"{part.namespace}/{part.claim}" for gpu in node.gpus for part in gpu.parts}
    policies = {gpu.policy for gpu in node.gpus}
    return " ".join((node.name, *products, *claims, *policies))


def _claim_texts(row: ClaimRow) -> str:
    return " ".join((f"{row.namespace}/{row.name}", row.state, *row.nodes, *row.pods, *map(str, row.requests)))

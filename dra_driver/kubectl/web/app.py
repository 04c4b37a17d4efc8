"""Pages of the web UI: routes, the values of each template, and the stream that reports changes."""

import asyncio
import logging
import shlex
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import Struct, field
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from dra_driver.core import yaml_text
from dra_driver.core.errors import DraError
from dra_driver.core.text import cut, gib, listed, printable, span
from dra_driver.kube.state import ClusterState, identity
from dra_driver.kubectl.capacity import LEGEND, ClaimRow
from dra_driver.kubectl.explain import Explanation
from dra_driver.kubectl.web.access_control import AccessControl, Keys
from dra_driver.kubectl.web.charts import RANGES, charts_of
from dra_driver.kubectl.web.faults import of_gpu
from dra_driver.kubectl.web.fleet import (
    NodeRow,
    SeenFleet,
    cliques_of,
    island_of,
    islands_of,
    layouts_of,
    spots_of,
)
from dra_driver.kubectl.web.heat_map import MEASURES, groups_of, memory_ratio, ordered, shown_nodes, totals_of
from dra_driver.kubectl.web.reading import (
    BackgroundResult,
    BackgroundResults,
    LastRead,
    Periodic,
    ReadFailure,
    SeenCluster,
)
from dra_driver.kubectl.web.rows import (
    CLAIM_ORDERS,
    EVENT_KINDS,
    EXAMPLE,
    MAX_BYTES,
    Uses,
    Waiting,
    ago,
    cause_of,
    claim_details,
    claim_views,
    explain_claim,
    explain_pod,
    findings_of,
    in_thread,
    matching,
    namespace_rows,
    page_of,
    policy_rows,
    query_string,
    survey_of,
    tried,
)
from dra_driver.kubectl.web.use_history import WINDOW_S, UseNow

log = logging.getLogger(__name__)

HERE: Final = Path(__file__).parent
MAX_NODES_AS_BARS: Final = 12
"""More nodes are a heat map."""
ROWS_PER_PAGE: Final = 50
CARDS_PER_PAGE: Final = 20
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

    @property
    def is_use_old(self) -> bool:
        """Return whether use is older than its readings explain: an exporter does not end its answer."""
        return self.use_reading is not None and _is_old(self.use_reading)


class PageSources(Struct, frozen=True, kw_only=True):
    """Sources of the pages. ``use`` is None without exporters; ``about`` names the cluster.

    ``past`` reads samples of Prometheus by seconds and labels; ``past_results`` keeps its answers, apart from slow
    computations. ``taken`` describes the time of a snapshot, "" for a live cluster. ``is_over`` ends streams: the
    visitor's session has ended. ``is_visitor``: the page belongs to one of several visitors, who can sign out.
    """

    cluster: Periodic[SeenCluster]
    background_results: BackgroundResults
    about: str
    use: Periodic[UseNow] | None = None
    past: Callable[[int, Mapping[str, str]], object] | None = None
    past_results: BackgroundResults = field(default_factory=BackgroundResults)
    taken: str = ""
    is_over: Callable[[], bool] = lambda: False
    is_visitor: bool = False
    max_streams: int = MAX_STREAMS
    tries: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(TRIES_AT_ONCE))
    """Running explanations of pasted manifests."""

    def start(self) -> None:
        for each in self._readers:
            each.start()

    def stop(self, timeout_s: float) -> None:
        """Stop the threads. Idempotent."""
        for each in self._readers:
            each.stop(timeout_s)

    @property
    def _readers(self) -> Iterator[Periodic[Any] | BackgroundResults]:
        yield from (self.cluster, self.background_results)
        yield from (self.use,) if self.use else ()
        yield from (self.past_results,) if self.past else ()


STATIC: Final = Mount("/static", StaticFiles(directory=HERE / "static"))


def application(sources: PageSources, keys: Keys, hosts: tuple[str, ...]) -> ASGIApp:
    return AccessControl(pages_below(f"/{keys.folder}", sources), keys, hosts)


def pages_below(base: str, sources: PageSources) -> Starlette:
    """Return the pages with addresses that begin with ``base``, without access control."""
    pages = Pages(sources, base)
    routes = [
        Route("/", pages.fleet),
        Route("/faults", pages.faults),
        Route("/namespaces", pages.namespaces),
        Route("/topology", pages.topology),
        Route("/policies", pages.policies),
        Route("/doctor", pages.doctor),
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
        STATIC,
    ]
    handlers: Mapping[Any, Any] = {404: pages.missing, 500: pages.broken}
    return Starlette(routes=[Mount(base, routes=routes)], exception_handlers=handlers)


@cache
def templates() -> Environment:
    """Return the templates of the process, which compiles each once: values are escaped, unknown names are errors."""
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
        "gib1": lambda count: "?" if count is None else f"{count / 2**30:.1f}",
        "iso": _iso,
        "percent": lambda ratio: f"{100 * ratio:.0f} %",
        "span": span,
        "listed": listed,
        "plain": lambda text: printable(cut(text, MAX_TEXT)),
        "plain_lines": lambda text: "\n".join(printable(line) for line in text[: 8 * MAX_TEXT].split("\n")),
        "quoted": shlex.quote,
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

    async def fleet(self, request: Request) -> Response:
        seen, query = self._seen(request), _query(request)
        fleet, use = seen.cluster.fleet, seen.use.gpus if seen.use else {}
        show, by, order, color = (request.query_params.get(name, "") for name in ("show", "group", "sort", "color"))
        measure = color if color in MEASURES else "busy" if use else "granted"
        nodes = ordered(matching(shown_nodes(fleet.nodes, use, show), query, _node_texts), use, order)
        is_map = len(nodes) > MAX_NODES_AS_BARS
        return self._page(
            request,
            "fleet.html",
            nodes=nodes,
            groups=groups_of(nodes, use, measure=measure, by=by) if is_map else (),
            gpus=use,
            totals=fleet.totals,
            use_totals=totals_of(use, fleet.nodes),
            faults=seen.cluster.faults,
            # As in the URL: links of the page change one of them.
            chosen={"q": query, "show": show, "color": color, "group": by, "sort": order},
            measure=measure,
        )

    async def faults(self, request: Request) -> Response:
        query, every = _query(request), self._seen(request).cluster.faults
        found = matching(every, query, lambda each: " ".join((each.node, each.gpu, *each.causes, each.message)))
        page = page_of(found, _page(request), CARDS_PER_PAGE, of=len(every))
        return self._page(request, "faults.html", page=page, query=query)

    async def node(self, request: Request) -> Response:
        seen, name = self._seen(request), request.path_params["node"]
        found = seen.cluster.fleet.node(name)
        if found is None:
            return self._gone(request, f"Node {name} has no GPUs, or does not exist.")
        return self._page(
            request,
            "node.html",
            node=found,
            gpus=seen.use.gpus if seen.use else {},
            faults=[each for each in seen.cluster.faults if each.node == name],
            islands=islands_of(found),
            spots=spots_of(found),
        )

    async def gpu(self, request: Request) -> Response:
        node, name = request.path_params["node"], request.path_params["gpu"]
        seen, now, (chosen, range_s) = self._seen(request), datetime.now(UTC), self._range(request)
        fleet = seen.cluster.fleet
        found = fleet.gpu(node, name)
        if found is None:
            return self._gone(request, f"Node {node} has no GPU {name}.")
        use, past, problem = self._use_over(seen, range_s, {"node": node})
        holders = []
        for part in (*found.parts, *found.admins):
            key = (part.namespace, part.claim, node, part.device, part.share_id)
            points = past.points(key) if past else []
            holders.append(
                (part, seen.uses.get(key), charts_of(points, part.memory_bytes, now, range_s, limit="granted"))
            )
        memory = use.gpus.get((node, name)) if use else None
        total = memory.total_bytes if memory and memory.total_bytes else found.memory_bytes
        points = past.points_of_gpu(node, name) if past else []
        return self._page(
            request,
            "gpu.html",
            gpu=found,
            faults=of_gpu(seen.cluster.faults, node, name),
            holders=holders,
            memory=memory,
            whole=charts_of(points, total, now, range_s, limit="in total"),
            ranges=self._ranges,
            chosen=chosen,
            past_problem=problem,
            island=island_of(found, fleet),
            clique=cliques_of(fleet).get(found.place.clique, []),
            numa=found.place.numa_text,
        )

    @property
    def _ranges(self) -> list[str]:
        return [name for name, length in RANGES.items() if length <= WINDOW_S or self._sources.past is not None]

    def _range(self, request: Request) -> tuple[str, int]:
        wanted = request.query_params.get("range", "")
        chosen = wanted if wanted in self._ranges else "1h" if self._sources.past else "15m"
        return chosen, RANGES[chosen]

    def _use_over(
        self, seen: SeenState, range_s: int, where: dict[str, str]
    ) -> tuple[UseNow | None, UseNow | None, str]:
        """Return the use now, the use with the samples of the range, and the reason why they are missing."""
        use, ask = seen.use, self._sources.past
        if use is None or range_s <= WINDOW_S or ask is None:
            return use, use, ""
        key, minute = (range_s, *sorted(where.items())), int(time.time() // 60)
        answer = self._sources.past_results.ask(key, minute, lambda: ask(range_s, where))
        if answer is None:
            return use, None, "Reading from Prometheus …"
        samples = answer.value if isinstance(answer.value, list) else []
        return use, replace(use, samples=samples), answer.problem

    async def claims(self, request: Request) -> Response:
        seen, query, rows = self._seen(request), _query(request), self._seen(request).cluster.claims
        show, namespace, sort = (request.query_params.get(name, "") for name in ("show", "namespace", "sort"))
        found = [row for row in matching(rows, query, _claim_texts) if show in ("", row.state)]
        found = [row for row in found if namespace in ("", row.namespace)]
        views = claim_views(found, seen.cluster.fleet, seen.uses)
        key, is_descending = CLAIM_ORDERS.get(sort, CLAIM_ORDERS["name"])
        views.sort(key=key, reverse=is_descending)  # type: ignore[arg-type]
        page = page_of(views, _page(request), ROWS_PER_PAGE, of=len(rows))
        wanted = {(view.claim.namespace, view.claim.name) for view in page.rows}
        return self._page(
            request,
            "claims.html",
            page=page,
            details=claim_details(seen.cluster.state.claims, wanted),
            namespaces=sorted({row.namespace for row in rows}),
            chosen={"q": query, "show": show, "namespace": namespace, "sort": sort},
        )

    async def claim(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        seen, now, (chosen, range_s) = self._seen(request), datetime.now(UTC), self._range(request)
        found = [row for row in seen.cluster.claims if (row.namespace, row.name) == (namespace, name)]
        if not found:
            return self._gone(request, f"Claim {name} does not exist in namespace {namespace}.")
        view = claim_views(found, seen.cluster.fleet, seen.uses)[0]
        item = next(each for each in seen.cluster.state.claims if identity(each) in ((namespace, name), ("", name)))
        _, past, problem = self._use_over(seen, range_s, {"namespace": namespace, "claim": name})
        charts = []
        for each in view.devices:
            points = past.points(each.use_key) if past and each.use_key else []
            granted = each.part.memory_bytes if each.part else 0
            charts.append((each, charts_of(points, granted, now, range_s, limit="granted")))
        about = ("ResourceClaim", namespace, name)
        return self._page(
            request,
            "claim.html",
            view=view,
            details=claim_details((item,), {identity(item)}).get(identity(item)),
            charts=charts,
            ranges=self._ranges,
            chosen=chosen,
            past_problem=problem,
            answer=self._worked_out(seen, ("claim", *about), lambda state: explain_claim(state, item))
            if view.claim.state == "pending"
            else None,
            manifest=yaml_text.dump(dict(item)),
            events=[each for each in seen.cluster.events if (each.kind, each.namespace, each.name) == about][:20],
        )

    async def namespaces(self, request: Request) -> Response:
        seen, query = self._seen(request), _query(request)
        idle = {(each.namespace, each.claim) for status in seen.cluster.statuses.values() for each in status.usage.idle}
        views = claim_views(seen.cluster.claims, seen.cluster.fleet, seen.uses)
        every = namespace_rows(views, seen.cluster.waiting, idle, seen.cluster.quotas)
        page = page_of(matching(every, query, lambda row: row.name), _page(request), ROWS_PER_PAGE, of=len(every))
        return self._page(request, "namespaces.html", page=page, query=query)

    async def pending(self, request: Request) -> Response:
        seen, query = self._seen(request), _query(request)
        every = seen.cluster.waiting
        found = matching(every, query, lambda each: f"{each.namespace}/{each.name} {each.owner}")
        page = page_of(found, _page(request), ROWS_PER_PAGE, of=len(every))
        causes: dict[str, list[tuple[Waiting, BackgroundResult | None]]] = {}
        for each in page.rows:
            answer = self._explained(seen, each.namespace, each.name)
            report = answer.value if answer else None
            cause = cause_of(report) if isinstance(report, Explanation) else answer.problem if answer else ""
            causes.setdefault(cause, []).append((each, answer))
        groups = sorted(causes.items(), key=lambda item: -sum(each.count for each, _ in item[1]))
        return self._page(request, "pending.html", page=page, groups=groups, query=query)

    async def pod(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        seen = self._seen(request)
        if all(identity(pod) not in ((namespace, name), ("", name)) for pod in seen.cluster.state.pods):
            return self._gone(request, f"Pod {name} does not exist in namespace {namespace}.")
        answer = self._explained(seen, namespace, name)
        held = [row for row in seen.cluster.claims if row.namespace == namespace and name in row.pods]
        views = claim_views(held, seen.cluster.fleet, seen.uses)
        return self._page(request, "pod.html", namespace=namespace, name=name, answer=answer, views=views)

    async def capacity(self, request: Request) -> Response:
        answer = self._worked_out(self._seen(request), "capacity", survey_of)
        return self._page(request, "capacity.html", answer=answer, legend=LEGEND)

    async def topology(self, request: Request) -> Response:
        query, fleet = _query(request), self._seen(request).cluster.fleet
        layouts = layouts_of(matching(fleet.nodes, query, _node_texts))
        page = page_of(layouts, _page(request), CARDS_PER_PAGE)
        return self._page(request, "topology.html", page=page, cliques=cliques_of(fleet), query=query)

    async def policies(self, request: Request) -> Response:
        return self._page(request, "policies.html", rows=policy_rows(self._seen(request).cluster.fleet.nodes))

    async def doctor(self, request: Request) -> Response:
        return self._page(request, "doctor.html", answer=self._worked_out(self._seen(request), "doctor", findings_of))

    async def events(self, request: Request) -> Response:
        query, show = _query(request), request.query_params.get("show", "")
        every = self._seen(request).cluster.event_groups
        found = matching(every, query, lambda each: f"{each.newest.reason} {each.owner} {each.newest.message}")
        found = [each for each in found if show in ("", each.kind)]
        page = page_of(found, _page(request), ROWS_PER_PAGE, of=len(every))
        return self._page(request, "events.html", page=page, query=query, show=show, kinds=EVENT_KINDS)

    async def what_if(self, request: Request) -> Response:
        return self._page(request, "what_if.html", text=EXAMPLE, namespace="default", asked=False)

    async def try_it(self, request: Request) -> Response:
        try:
            fields = await read_form(request, MAX_BYTES)
        except ValueError as error:
            return self._page(request, "gone.html", status=413, title="Too large", sentence=str(error))
        text, namespace = fields.get("manifest", ""), fields.get("namespace", "") or "default"
        shown = self._render(request, "what_if.html", text=text, namespace=namespace, asked=True)
        head, _, tail = shown.partition(_SPLIT)
        return StreamingResponse(self._tried(request, head, tail, text, namespace), media_type="text/html")

    async def live(self, request: Request) -> Response:
        if self._streams >= self._sources.max_streams:
            return Response(status_code=503)
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._changes(request), media_type="text/event-stream", headers=headers)

    async def missing(self, request: Request, error: Exception) -> Response:  # noqa: ARG002
        return self._page(request, "gone.html", status=404, title="Not found", sentence="This page does not exist.")

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
        if reading and not trouble and _is_old(reading):
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
        if self._seen(request).reading is None:
            sentence = "The cluster has not been read yet."
            return self._page(request, "gone.html", status=503, title="Not read yet", sentence=sentence)
        return self._page(request, "gone.html", status=404, title="Not found", sentence=sentence)

    def _render(self, request: Request, template: str, **values: object) -> str:
        now, seen = datetime.now(UTC), self._seen(request)
        reading = seen.reading
        shown = self._templates.get_template(template).render(
            base=self._base,
            path=request.url.path.removeprefix(self._base),
            about=self._sources.about,
            taken=self._sources.taken,
            is_visitor=self._sources.is_visitor,
            theme=theme if (theme := request.cookies.get("dra_theme", "")) in ("dark", "light") else "",
            counts={"/faults": len(seen.cluster.faults), "/pending": sum(each.count for each in seen.cluster.waiting)},
            memory_ratio=memory_ratio,
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
        if not self._sources.tries.acquire(blocking=False):
            yield self._render(request, "_problem.html", sentence="Two trials are already running. Try again.")
            return
        answer = in_thread(lambda: tried(state, text, namespace), self._sources.tries.release)
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
            while not self._sources.is_over() and not await request.is_disconnected():
                seen = self._look()
                silent += 1
                if (now := (seen.number, seen.reading.at if seen.reading else None)) != known or silent >= _KEEP_ALIVE:
                    known, silent = now, 0
                    age = f"{_age_s(seen.reading):.0f} {_iso(seen.reading.at)}" if seen.reading else "0 -"
                    yield f"event: state\ndata: {seen.number} {age} {seen.problem or 'live'}\n\n"
                await asyncio.sleep(_TICK_S)
        finally:
            self._streams -= 1


def _age_s(reading: LastRead[Any]) -> float:
    return max(0.0, (datetime.now(UTC) - reading.at).total_seconds())


def _is_old(reading: LastRead[Any]) -> bool:
    return _age_s(reading) > max(OLD_S, _OLD_READINGS * reading.took_s)


def _iso(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _visible(value: object) -> object:
    """Replace characters that change the display of other characters, such as the direction; keep lines."""
    if not isinstance(value, str) or hasattr(value, "__html__") or value.isprintable():
        return value
    return "".join(each if each.isprintable() or each in "\r\n\t" else "?" for each in value)


async def read_form(request: Request, max_bytes: int) -> dict[str, str]:
    """Return the fields of a small form. Raises ValueError if it is too large."""
    most, body = 4 * max_bytes, bytearray()  # form encoding can triple each byte
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise ValueError(f"More than {max_bytes >> 10} KiB: paste less.")
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
    return " ".join((node.name, node.pool, *products, *claims, *policies))


def _claim_texts(row: ClaimRow) -> str:
    return " ".join((f"{row.namespace}/{row.name}", row.state, *row.nodes, *row.pods, *map(str, row.requests)))

"""Flags and readers of exporters and Prometheus for ``kubectl dra usage``, ``idle``, ``quota`` and ``ui``."""

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, DraError, ForbiddenError, KubernetesApiError
from dra_driver.core.text import UNKNOWN, printable, span
from dra_driver.core.time import format_duration
from dra_driver.kube import paths
from dra_driver.kube.shapes import MetadataPart, read_all
from dra_driver.kubectl.commands.listing import duration, selected
from dra_driver.kubectl.commands.source import Progress, add_kubeconfig, client, kubeconfig_of
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, UseReport, claims_held, decode
from dra_driver.kubectl.usage.history import History, queries
from dra_driver.kubectl.usage.idle_report import DeviceSize, joined, sizes_in

_LEAST_WINDOW_S: Final = 300


def add_usage_source(parser: argparse.ArgumentParser, *, window_s: float) -> None:
    """Add the flags of the source. ``window_s`` is the default with Prometheus."""
    add_exporters(parser)
    add_prometheus(parser, "read the window from this Prometheus instead of the exporters")
    parser.add_argument(
        "--window",
        type=partial(duration, least_s=_LEAST_WINDOW_S),
        metavar="DURATION",
        help=f"with --prometheus: such as 90m, 24h, 7d (default: {format_duration(window_s)}; minimum: 5m)",
    )


def add_prometheus(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--prometheus", metavar="URL", help=about)
    parser.add_argument("--prometheus-token-file", metavar="FILE", help="file with a token for Prometheus")


def add_exporters(parser: argparse.ArgumentParser) -> None:
    add_kubeconfig(parser)
    add_exporter_namespace(parser)


def add_exporter_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--driver-namespace",
        metavar="NAME",
        default="dra-driver",
        help="namespace of the exporters (default: dra-driver); needs permission to list pods and get pods/proxy there",
    )


# --- Prometheus over its HTTP API ("HTTP API", instant queries), with limits on time and size, without redirects.
#
# It is not trusted: ``usage/history.py`` validates its responses.

MAX_ANSWER: Final = 64 << 20
QUERY_S: Final = 30.0
_CHUNK: Final = 1 << 16
_MAX_TOKEN: Final = 16_384


class PrometheusError(DraError):
    """Prometheus did not respond, rejected the query, or sent an invalid response."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another host."""

    def redirect_request(self, *_: object) -> None:
        return None


class Prometheus:
    """One server. ``url`` has the path before ``/api/v1``. Raises ConfigurationError for a wrong address or token."""

    def __init__(self, url: str, token_file: str | None = None, *, timeout_s: float = QUERY_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigurationError(f"--prometheus {url[:80]!r}: expected an address such as http://localhost:9090")
        if parts.username or parts.password:
            raise ConfigurationError(
                "--prometheus: other users of this machine can read the password. Use --prometheus-token-file"
            )
        self.url = printable(url.rstrip("/"))
        self._timeout_s = timeout_s
        self._headers = {"Accept": "application/json"}
        if token_file is not None:
            self._headers["Authorization"] = f"Bearer {_token(token_file)}"
        self._opener = urllib.request.build_opener(_NoRedirects)

    def ask(self, query: str) -> object:
        """Return the parsed answer of an instant query. Raises PrometheusError."""
        body = urlencode({"query": query, "timeout": f"{self._timeout_s:g}s"}).encode()
        request = urllib.request.Request(f"{self.url}/api/v1/query", data=body, headers=self._headers)  # noqa: S310 - http(s), see above
        until = time.monotonic() + self._timeout_s
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return json.loads(self._body(answer, until))
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(400).decode("utf-8", "replace")
            raise PrometheusError(f"{self.url} answered {error.code}: {printable(said)[:300]}") from error
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise PrometheusError(
                f"no answer from {self.url}: {printable(str(reason))[:200]}. Check the address, or omit "
                "--prometheus to use the exporters' short window"
            ) from error
        except (ValueError, RecursionError) as error:
            raise PrometheusError(
                f"{self.url}: response is not JSON. Check that --prometheus points to a Prometheus server"
            ) from error

    def _body(self, answer: HTTPResponse, until: float) -> bytes:
        found = bytearray()
        while chunk := answer.read1(_CHUNK):
            found += chunk
            if len(found) > MAX_ANSWER:
                raise PrometheusError(f"{self.url}: response exceeds {MAX_ANSWER >> 20} MiB")
            if time.monotonic() > until:
                raise PrometheusError(f"{self.url}: response took longer than {self._timeout_s:g} s")
        return bytes(found)


def _token(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            found = file.read(_MAX_TOKEN).strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read --prometheus-token-file {path}: {error}") from error
    if not found or not found.isprintable() or " " in found:
        raise ConfigurationError(f"--prometheus-token-file {path}: expected one token")
    return found


def read_use(args: argparse.Namespace, default_window_s: float, *, node: str = "") -> UseReport:
    """Read the report from exporters or Prometheus. Raises ConfigurationError and DraError."""
    if args.prometheus:
        return _from_prometheus(prometheus_of(args), int(args.window or default_window_s), node=node)
    if args.window:
        raise ConfigurationError("--window needs --prometheus: the exporters have a fixed short window")
    with Progress("querying the exporters"):
        return ask_exporters(client(kubeconfig_of(args)), args.driver_namespace, node=node)


def read_joined(
    args: argparse.Namespace, default_window_s: float, *, namespace: str | None, node: str = ""
) -> tuple[UseReport, Callable[[ClaimDeviceUse], DeviceSize]]:
    """Return the report of `read_use` with pods and device memory from the API server, and the sizes of devices.

    It has the claims of ``namespace`` (None: all) that -l selects. If the API server refuses, print a note: sizes are
    unknown, and pods are as the source reports them. Raises DraError if -l cannot be evaluated.
    """
    report = read_use(args, default_window_s, node=node)
    uses = [use for use in report.uses if namespace in (None, use.namespace)]
    lost = note_of("unknown device size: ResourceSlice or device")
    size_of = sizes_in(_listed(args, paths.resource_slices(), "the size of devices") if uses else (), lost)
    claims = _listed(args, paths.resource_claims(namespace), "pods of claims") if uses else ()
    if args.selector and uses:
        if not claims:
            raise DraError("-l: cannot read the labels of claims; see the note above")
        chosen = claims_held(selected(args.selector, claims))
        uses = [use for use in uses if (use.namespace, use.claim) in chosen]
    return replace(report, uses=joined(uses, claims_held(claims), size_of)), size_of


def _listed(args: argparse.Namespace, path: str, what: str) -> Sequence[Any]:
    try:
        found: Sequence[Any] = client(kubeconfig_of(args)).list(path)["items"]
    except (KubernetesApiError, ConfigurationError) as error:
        print(f"note: cannot read {what}: {printable(str(error))}", file=sys.stderr)
        return ()
    return found


def prometheus_of(args: argparse.Namespace) -> Prometheus:
    return Prometheus(args.prometheus, args.prometheus_token_file)


def _from_prometheus(server: Prometheus, window: int, *, node: str = "") -> UseReport:
    history = History(window)
    for field, query in queries(window).items():
        with Progress(f"querying Prometheus for {field}"):
            answer = server.ask(query)
        try:
            history.add(field, answer)
        except ValueError as error:
            raise PrometheusError(f"{server.url}: {error}") from error
    uses = [use for use in history.uses() if node in ("", use.node)]
    gaps = history.gaps()
    if not uses:
        gaps.append("Prometheus has no metrics of claims in this window. Check that it scrapes the exporters")
    return UseReport(source=f"Prometheus at {server.url}", window_s=window, uses=uses, gaps=tuple(gaps))


def tell_source(report: UseReport) -> None:
    """Print the source and the window on standard error."""
    window = span(report.window_s) if report.window_s % 60 else format_duration(report.window_s)
    print(f"from {printable(report.source)}, window {window}", file=sys.stderr)


def note_of(kind: str) -> Callable[[str], None]:
    """Return a function that reports objects skipped by `read_all` on standard error."""
    return lambda said: print(f"note: {printable(f'{kind} {said}')}", file=sys.stderr)


def percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{100 * ratio:.0f}%"


def energy(joules: float | None, *, estimated: bool = False) -> str:
    """Return ``1.250 kWh``; ``~`` marks an estimate."""
    if joules is None:
        return UNKNOWN
    return "<0.001 kWh" if 0 < joules < 1800 else f"{'~' if estimated else ''}{joules / 3.6e6:.3f} kWh"


def number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


SELECTOR: Final = "app.kubernetes.io/component=exporter"
PORT: Final = 8082
ALL_S: Final = 120.0  # all nodes together: 1,000 responsive exporters take about half of it
_GROUP: Final = 64
_MAX_GAPS: Final = 10


class _PodSpec(Struct, frozen=True, rename="camel"):
    node_name: str = ""


class _ExporterPod(Struct, frozen=True):
    metadata: MetadataPart
    spec: _PodSpec = _PodSpec()


class ExporterApi(Protocol):
    """Subset of ``rest.RestClient``."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...
    def get_all(
        self, paths: Sequence[str], *, within_s: float | None = None
    ) -> Sequence[Mapping[str, object] | KubernetesApiError]: ...


def ask_exporters(api: ExporterApi, namespace: str, *, node: str = "") -> UseReport:
    """Read the exporters of all nodes, or of one. Raises ConfigurationError without an exporter, ForbiddenError without
    the permission to query one, ApiUnreachableError without an answer."""
    gaps: list[str] = []
    items = api.list(paths.pods(namespace), {"labelSelector": SELECTOR})["items"]
    every = read_all(_ExporterPod, items, lambda said: gaps.append(f"exporter pod {said}"))
    pods = [pod for pod in every if not pod.metadata.deletion_timestamp and node in ("", pod.spec.node_name)]
    count = len(pods) + len(gaps)
    if not count:
        where = f" on node {node}" if node else ""
        raise ConfigurationError(
            f"no pod with the label {SELECTOR} in namespace {namespace}{where}: set exporter.enabled in the chart, "
            "select another namespace (--driver-namespace), or read recorded data with --prometheus"
        )
    reports: list[UseReport] = []
    for at in range(0, len(pods), _GROUP):
        group = pods[at : at + _GROUP]
        asked = [f"{paths.pod(namespace, f'{pod.metadata.name}:{PORT}')}/proxy/usage" for pod in group]
        for pod, answer in zip(group, api.get_all(asked, within_s=ALL_S), strict=True):
            if isinstance(answer, ForbiddenError):
                raise answer
            if isinstance(answer, KubernetesApiError):
                gaps.append(f"node {pod.spec.node_name}: its exporter does not respond: {answer}")
                continue
            try:
                reports.append(decode(answer, pod.spec.node_name))
            except ValueError as error:
                gaps.append(f"node {pod.spec.node_name}: invalid response of its exporter: {error}")
                continue
            gaps += reports[-1].gaps
    if not reports:
        raise ApiUnreachableError(f"no usage data: none of {count} exporters returned a valid response; {gaps[0]}")
    more = [f"and {len(gaps) - _MAX_GAPS} more"] if len(gaps) > _MAX_GAPS else []
    return UseReport(
        source=f"{len(reports)} of {count} exporters",
        window_s=min(each.window_s for each in reports),
        uses=[use for each in reports for use in each.uses],
        gaps=(*map(printable, gaps[:_MAX_GAPS]), *more),
        gpus=tuple(gpu for each in reports for gpu in each.gpus),
    )

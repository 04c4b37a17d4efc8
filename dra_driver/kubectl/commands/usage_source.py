"""Flags and readers of exporters and Prometheus for ``kubectl dra usage``, ``idle``, ``quota`` and ``ui``."""

import argparse
import csv
import json
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, DraError, ForbiddenError, KubernetesApiError
from dra_driver.core.text import UNKNOWN, printable
from dra_driver.kube import paths
from dra_driver.kube.shapes import MetadataPart, read_all
from dra_driver.kubectl.commands.source import Progress, add_kubeconfig, client, kubeconfig_of
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, UseReport, claims_held, decode
from dra_driver.kubectl.usage.history import History, queries
from dra_driver.kubectl.usage.idle_report import DeviceSize, joined, sizes_in

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_WINDOW_S: Final = 366 * 86_400


def add_usage_source(parser: argparse.ArgumentParser, *, window: str) -> None:
    """Add the flags of the source. ``window`` is the default with Prometheus."""
    add_kubeconfig(parser)
    parser.add_argument(
        "--driver-namespace",
        metavar="NAME",
        default="dra-driver",
        help="namespace of the exporters (default: dra-driver); needs permission to list pods and get pods/proxy there",
    )
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="read the window from this Prometheus instead of the exporters",
    )
    parser.add_argument("--prometheus-token-file", metavar="FILE", help="file with a token for Prometheus")
    parser.add_argument(
        "--window",
        metavar="TIME",
        help=f"with --prometheus: such as 90m, 24h, 7d (default: {window}; minimum: 5m)",
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


def window_s(args: argparse.Namespace, default: str) -> int:
    if args.window and not args.prometheus:
        raise ConfigurationError("--window needs --prometheus: the exporters have a fixed short window")
    return seconds(args.window or default, "--window", least=300)


def seconds(text: str, flag: str, *, least: int = 1) -> int:
    """Return a time such as 90m in seconds. Raises ConfigurationError, which names the flag."""
    match = re.fullmatch(r"([0-9]{1,7})([smhdw])", text)
    found = int(match[1]) * _UNITS[match[2]] if match else 0
    if not least <= found <= MAX_WINDOW_S:
        raise ConfigurationError(f"{flag} {text[:40]}: expected a time such as 90m, 24h or 7d, {least} s to 366 days")
    return found


def read_use(args: argparse.Namespace, default_window: str, *, node: str = "") -> UseReport:
    """Read the report from exporters or Prometheus. Raises ConfigurationError and DraError."""
    if args.prometheus:
        return _from_prometheus(prometheus_of(args), window_s(args, default_window), node=node)
    window_s(args, default_window)
    with Progress("querying the exporters"):
        return ask_exporters(client(kubeconfig_of(args)), args.driver_namespace, node=node)


def read_joined(
    args: argparse.Namespace, default_window: str, *, node: str = ""
) -> tuple[UseReport, Callable[[ClaimDeviceUse], DeviceSize]]:
    """Return the report of `read_use` with pods and device memory from the API server, and the sizes of devices.

    If the API server refuses, print a note: sizes are unknown, and pods are as the source reports them.
    """
    report = read_use(args, default_window, node=node)
    lost = note_of("unknown device size: ResourceSlice or device")
    wanted = bool(report.uses)
    size_of = sizes_in(_listed(args, paths.resource_slices(), "the size of devices") if wanted else (), lost)
    held = claims_held(_listed(args, paths.resource_claims(args.namespace), "pods of claims") if wanted else ())
    return replace(report, uses=joined(report.uses, held, size_of)), size_of


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
    """Print the source, the window and gaps on standard error."""
    print(f"from {printable(report.source)}, window {_window_text(report.window_s)}", file=sys.stderr)
    for gap in report.gaps:
        print(f"note: {printable(gap)}", file=sys.stderr)


def note_of(kind: str) -> Callable[[str], None]:
    """Return a function that reports objects skipped by `read_all` on standard error."""
    return lambda said: print(f"note: {printable(f'{kind} {said}')}", file=sys.stderr)


def _window_text(window: float) -> str:
    """Return ``90 s``, ``15 min``, ``24 h``, ``7 d``."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if window >= 2 * size or window == size:
            return f"{window / size:g} {unit}" if window % size == 0 else f"{window / size:.1f} {unit}"
    return f"{window:.0f} s"


Cell = str | int | float | None  # table cell; None is unknown
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{100 * ratio:.0f}%"


def energy(joules: float | None, *, estimated: bool = False) -> str:
    """Return ``1.25 kWh``; ``~`` marks an estimate."""
    if joules is None:
        return UNKNOWN
    mark = "~" if estimated else ""
    return f"{mark}{joules / 3.6e6:.2f} kWh" if joules >= 3.6e5 else f"{mark}{joules / 3600:.1f} Wh"


def number(value: Cell) -> str:
    return UNKNOWN if value is None else str(value)


def print_csv(headings: Sequence[str], rows: Iterable[Iterable[Cell]]) -> None:
    """Print plain values, empty if unknown. Quote names that a spreadsheet would compute."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(map(_cell, row) for row in rows)


def _cell(value: Cell) -> str | int:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if not isinstance(value, str):
        return value
    line = printable(value)
    return f"'{line}" if line.startswith(_FORMULA) else line


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

"""Flags and readers that ``kubectl dra usage``, ``idle`` and ``quota`` share."""

import argparse
import re
import sys
from typing import TYPE_CHECKING, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import printable
from dra_driver.kubectl.commands.kubeconfig import add_kubeconfig, kubeconfig_of
from dra_driver.kubectl.commands.progress import Progress

if TYPE_CHECKING:
    from dra_driver.kubectl.commands.prometheus import Prometheus
    from dra_driver.kubectl.usage.device_use import UseReport

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_WINDOW_S: Final = 366 * 86_400


def add_usage_source(parser: argparse.ArgumentParser, *, window: str) -> None:
    """Adds the flags that say who is asked. ``window`` is the default with Prometheus."""
    add_kubeconfig(parser)
    parser.add_argument(
        "--driver-namespace",
        metavar="NAME",
        default="dra-driver",
        help="namespace of the exporters (default: dra-driver); each is asked through the API server, which needs the "
        "rights to list pods and to get pods/proxy there",
    )
    parser.add_argument(
        "--prometheus",
        metavar="URL",
        help="ask this Prometheus for the window in place of the exporters, which know their own short one alone",
    )
    parser.add_argument("--prometheus-token-file", metavar="FILE", help="a token that the Prometheus wants")
    parser.add_argument(
        "--window",
        metavar="TIME",
        help=f"with --prometheus: how far back, such as 90m, 24h, 7d (default: {window}; at least 5m)",
    )


def window_s(args: argparse.Namespace, default: str) -> int:
    """The window in seconds. Raises ConfigurationError."""
    if args.window and not args.prometheus:
        raise ConfigurationError("--window: the exporters know their own short window alone; give --prometheus, too")
    return seconds(args.window or default, "--window", least=300)


def seconds(text: str, flag: str, *, least: int = 1) -> int:
    """A time such as 90m in seconds. Raises ConfigurationError, which names the flag."""
    match = re.fullmatch(r"([0-9]{1,7})([smhdw])", text)
    found = int(match[1]) * _UNITS[match[2]] if match else 0
    if not least <= found <= MAX_WINDOW_S:
        raise ConfigurationError(f"{flag} {text[:40]}: expected a time such as 90m, 24h or 7d, {least} s to 366 days")
    return found


def read_use(args: argparse.Namespace, default_window: str, *, node: str = "") -> "UseReport":
    """What the flags ask for, from exporters or Prometheus. Raises ConfigurationError and DraError."""
    if args.prometheus:
        return _from_prometheus(prometheus_of(args), window_s(args, default_window), node=node)
    window_s(args, default_window)
    from dra_driver.kubectl.commands.exporters import ask_exporters
    from dra_driver.kubectl.commands.source import client

    with Progress("asking the exporters"):
        return ask_exporters(client(kubeconfig_of(args)), args.driver_namespace, node=node)


def prometheus_of(args: argparse.Namespace) -> "Prometheus":
    """The server that the flags name. Raises ConfigurationError."""
    from dra_driver.kubectl.commands.prometheus import Prometheus

    return Prometheus(args.prometheus, args.prometheus_token_file)


def _from_prometheus(server: "Prometheus", window: int, *, node: str = "") -> "UseReport":
    """What Prometheus recorded over the window. Raises PrometheusError."""
    from dra_driver.kubectl.commands.prometheus import PrometheusError
    from dra_driver.kubectl.usage.device_use import UseReport
    from dra_driver.kubectl.usage.history import History, queries

    history = History(window)
    for field, query in queries(window).items():
        with Progress(f"asking Prometheus for {field}"):
            answer = server.ask(query)
        try:
            history.add(field, answer)
        except ValueError as error:
            raise PrometheusError(f"{server.url}: {error}") from error
    uses = [use for use in history.uses() if node in ("", use.node)]
    gaps = list(history.gaps())
    if not uses:
        gaps.append("Prometheus has no metrics of claims in this window: does it scrape the exporters?")
    return UseReport(source=f"Prometheus at {server.url}", window_s=window, uses=uses, gaps=tuple(gaps))


def tell_source(report: "UseReport") -> None:
    """Says on standard error who told it, over which time, and what is missing."""
    print(f"from {printable(report.source)}, window {_window_text(report.window_s)}", file=sys.stderr)
    for gap in report.gaps:
        print(f"note: {printable(gap)}", file=sys.stderr)


def _window_text(window: float) -> str:
    """``90 s``, ``15 min``, ``24 h``, ``7 d``."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if window >= 2 * size or window == size:
            return f"{window / size:g} {unit}" if window % size == 0 else f"{window / size:.1f} {unit}"
    return f"{window:.0f} s"

"""``kubectl dra ui``: serve the web UI on loopback with the user's permissions, or to visitors with theirs."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import printable
from dra_driver.kubectl.commands import usage_source
from dra_driver.kubectl.commands.source import SERVICE_ACCOUNT_DIR, add_source, client, kubeconfig_of, state_in_file

if TYPE_CHECKING:
    from dra_driver.kubectl.usage.device_use import UseReport
    from dra_driver.kubectl.web.reading import ReadsCluster
    from dra_driver.kubectl.web.use_history import UseSample

DESCRIPTION: Final = """\
Serve the web UI on loopback until Ctrl-C: nodes and GPUs, claims and their use, waiting pods, capacity and events. It
only reads, with the permissions of the kubeconfig.

  kubectl dra ui
  kubectl dra ui --port 8090
  kubectl dra ui --cluster-state cluster.json

The printed address contains a code for one use in one browser; other users of the machine get 403.

With --sign-in, as in a pod, each visitor signs in with a token and reads with it. Of the kubeconfig or the pod, only
the API server's address and CA are used.

  kubectl dra ui --sign-in --origin https://gpus.example.com
"""
_MAX_PORT: Final = 65_535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=0, metavar="PORT", help="port on 127.0.0.1 (default: a free one)")
    usage_source.add_exporter_namespace(parser)
    usage_source.add_prometheus(parser, "history of charts from this Prometheus, up to 7 days")
    parser.add_argument("--sign-in", action="store_true", help="serve several visitors, each with their own token")
    parser.add_argument(
        "--origin", metavar="URL", action="append", default=[], help="with --sign-in: public https address; repeatable"
    )
    parser.add_argument("--all-addresses", action="store_true", help="with --sign-in: listen beyond 127.0.0.1")
    parser.add_argument("--max-sessions", type=int, metavar="COUNT", default=16, help="with --sign-in (default: 16)")
    add_source(parser)


def run(args: argparse.Namespace) -> int:
    from dra_driver.kubectl.web.reading import FileSource, LiveSource
    from dra_driver.kubectl.web.serve import serve

    if not 0 <= args.port <= _MAX_PORT:
        raise ConfigurationError(f"--port {args.port}: expected 0 to {_MAX_PORT}")
    if args.sign_in:
        return _serve_visitors(args)
    if args.origin or args.all_addresses:
        raise ConfigurationError("--origin and --all-addresses need --sign-in")
    read_past = _reader_of_past(args) if args.prometheus else None
    read_use: Callable[[], UseReport] | None = None
    source: ReadsCluster
    taken = ""
    if args.cluster_state:
        state = state_in_file(args.cluster_state)
        file = Path(args.cluster_state)
        source, about = FileSource(state), file.name
        taken = f"snapshot, file of {datetime.fromtimestamp(file.stat().st_mtime):%Y-%m-%d %H:%M}"
    else:
        chosen = kubeconfig_of(args)
        about = chosen.context or chosen.current_context(os.environ) or "in-cluster"
        namespace = chosen.namespace(os.environ, SERVICE_ACCOUNT_DIR)
        source = LiveSource(client(chosen), namespace)
        # A separate client: another thread reads the cluster.
        read_use = partial(usage_source.ask_exporters, client(chosen), args.driver_namespace)
    serve(source, about=printable(about), port=args.port, say=_say, read_use=read_use, read_past=read_past, taken=taken)
    return 0


def _serve_visitors(args: argparse.Namespace) -> int:
    """Serve visitors. Prometheus does not know their permissions, and a file has none."""
    from dra_driver.core.telemetry import logs
    from dra_driver.kube.connection import token_connection
    from dra_driver.kube.rest import RestClient, Timeouts
    from dra_driver.kubectl.web.serve import reader_with_tokens, serve_visitors
    from dra_driver.kubectl.web.sessions import origins_of

    if args.cluster_state or args.prometheus:
        raise ConfigurationError("--sign-in cannot be combined with --cluster-state or --prometheus")
    if args.max_sessions < 1:
        raise ConfigurationError(f"--max-sessions {args.max_sessions}: expected at least 1")
    connect = token_connection(args.kubeconfig, context=args.context)
    logs.configure("text", "info")
    serve_visitors(
        reader_with_tokens(
            lambda token: RestClient(connect(token), timeouts=Timeouts(read_s=20.0, total_s=20.0)),
            lambda api: usage_source.ask_exporters(api, args.driver_namespace),
        ),
        origins=origins_of(args.origin),
        port=args.port,
        everywhere=args.all_addresses,
        max_sessions=args.max_sessions,
        say=lambda address: print(f"{address} (sign in with a token; Ctrl-C stops the web UI)", flush=True),
    )
    return 0


def _reader_of_past(args: argparse.Namespace) -> "Callable[[int, Mapping[str, str]], Sequence[UseSample]]":
    """Return a function that queries Prometheus for a window. Raises ConfigurationError for a wrong address."""
    from dra_driver.kubectl.web.use_history import past_of

    if args.cluster_state:
        raise ConfigurationError("--prometheus cannot be combined with --cluster-state, which is not current")
    server = usage_source.prometheus_of(args)

    def past(window_s: int, where: "Mapping[str, str]") -> "Sequence[UseSample]":
        try:
            return past_of(server.ask, window_s, where)
        except ValueError as error:
            raise usage_source.PrometheusError(f"{server.url}: {error}") from error

    return past


def _say(address: str) -> None:
    print(address, flush=True)
    print("The code in the address works once. Ctrl-C stops the web UI.", file=sys.stderr, flush=True)

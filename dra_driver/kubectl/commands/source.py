"""The source of a command: flags of kubeconfig, namespace and state file, the client, and the line of progress."""

import argparse
import difflib
import gc
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TextIO

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError, ForbiddenError, NotFoundError, RetryableError
from dra_driver.core.text import printable
from dra_driver.core.worker import Worker
from dra_driver.kube.kubeconfig import DEFAULT, Kubeconfig

if TYPE_CHECKING:
    from dra_driver.kube.rest import RestClient
    from dra_driver.kube.state import ClusterState

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def add_kubeconfig(parser: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None) -> None:
    """Add ``--kubeconfig``, to ``group`` if there is one, and ``--context``."""
    (group or parser).add_argument(
        "--kubeconfig", metavar="FILE", help="kubeconfig of the API server (default: as kubectl)"
    )
    parser.add_argument("--context", metavar="NAME", help="context of the kubeconfig (default: its current context)")


def kubeconfig_of(args: argparse.Namespace) -> Kubeconfig:
    """Raises ConfigurationError for a context that does not exist."""
    found = Kubeconfig(path=args.kubeconfig, context=args.context)
    if found.context is not None:
        found.check(os.environ)
    return found


def namespace_of(args: argparse.Namespace) -> str:
    """Return the namespace of ``-n`` or the kubeconfig; ``default`` for a state file. Raises as `kubeconfig_of`."""
    if args.namespace or any(getattr(args, name, None) for name in ("cluster_state", "snapshot")):
        return str(args.namespace or DEFAULT)
    return kubeconfig_of(args).namespace(os.environ, SERVICE_ACCOUNT_DIR)


AFTER_S: Final = 2.0
_EVERY_S: Final = 0.5
_STOP_S: Final = 2.0
_CLEAR: Final = "\r\x1b[K"


class Progress:
    """A context that shows a line with the elapsed seconds on standard error, after two seconds, until it ends.

    Other output must come after the context, or between `hide` and the next `say`.
    """

    def __init__(self, text: str, *, stream: TextIO | None = None, after_s: float = AFTER_S) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()  # guards the text and the stream
        self._text, self._is_shown = text, False
        self._began = time.monotonic()
        self._worker = Worker("progress", self._write, first_s=after_s)

    def __enter__(self) -> Self:
        if self._stream.isatty():
            self._worker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.stop(_STOP_S)
        self.hide()

    def say(self, text: str) -> None:
        with self._lock:
            self._text = text

    def hide(self) -> None:
        """Remove the line; it returns within half a second of a `say`."""
        with self._lock:
            if self._is_shown:
                self._stream.write(_CLEAR)
                self._stream.flush()
            self._is_shown, self._text = False, ""

    def _write(self) -> float:
        with self._lock:
            if self._text:
                self._stream.write(f"{_CLEAR}{line(self._text, time.monotonic() - self._began)}")
                self._stream.flush()
                self._is_shown = True
        return _EVERY_S


def line(text: str, seconds: float, width: Callable[[], int] = lambda: shutil.get_terminal_size().columns) -> str:
    shown = printable(text)
    end = f" ... {seconds:.0f} s"
    return f"{shown[: max(0, width() - len(end) - 1)]}{end}"


_MAX_STDIN = 16 << 20


def add_source(parser: argparse.ArgumentParser) -> None:
    """Add ``--kubeconfig``, ``--context`` and ``--cluster-state``."""
    source = parser.add_mutually_exclusive_group()
    add_kubeconfig(parser, source)
    source.add_argument(
        "--cluster-state",
        metavar="FILE",
        help="offline: a file of `kubectl dra snapshot`, `kubectl dra support-bundle` or `kubectl get -o yaml`",
    )


def add_scheduling(parser: argparse.ArgumentParser) -> None:
    """Add ``--feature-gates``, ``--with-node`` and ``--with-policy``."""
    parser.add_argument(
        "--feature-gates",
        default="",
        metavar="A=true,B=false",
        help="scheduler feature gates that differ from its version's defaults",
    )
    parser.add_argument(
        "--with-node", metavar="GPUS", help="also answer for an added node, such as 8xh100-sxm5-80gb or a YAML file"
    )
    parser.add_argument(
        "--with-policy",
        metavar="PATH",
        action="append",
        help="GpuPolicy file or directory for the added node (default: the cluster's GpuPolicies); repeatable",
    )


def state_of(args: argparse.Namespace, *, namespace: str | None = None, only: Sequence[str] = ()) -> "ClusterState":
    """Return the state, of a live cluster ``only`` these fields. Raises ConfigurationError and KubernetesApiError."""
    # The process runs for a few seconds and keeps all objects to its end: garbage collection would take a third of it.
    from dra_driver.kube.state import KINDS

    gc.disable()
    if args.cluster_state:
        state = state_in_file(args.cluster_state)
        unused = tuple(f"{kind.resource}:" for kind in KINDS if only and kind.field not in only)
        return replace(state, gaps=tuple(gap for gap in state.gaps if not gap.startswith(unused)))
    return live_state(kubeconfig_of(args), namespace, only=only)


def live_state(kubeconfig: Kubeconfig, namespace: str | None, *, only: Sequence[str] = ()) -> "ClusterState":
    from dra_driver.kube.state import read_cluster

    with Progress("reading the cluster") as progress:
        return read_cluster(
            client(kubeconfig), namespace, only=only, notify=lambda kind: progress.say(f"reading {kind}")
        )


def state_in_file(path: str) -> "ClusterState":
    """Read a file of `kubectl dra snapshot` or `kubectl dra support-bundle`. Raises ConfigurationError."""
    from dra_driver.diagnose.doctor import bundle
    from dra_driver.kube.state_file import load

    with Progress(f"reading {path}"):
        return bundle.read(path).state() if bundle.is_bundle(path) else load(path)


def on_selected_nodes(args: argparse.Namespace, state: "ClusterState") -> "ClusterState":
    """Return the state with the slices of nodes that the label selector of -l selects. Raises RetryableError if the
    nodes could not be read."""
    if not args.selector:
        return state
    from dra_driver.kube.label_selector import selects

    if is_unread(state, "nodes"):
        raise RetryableError(f"cannot select nodes with -l: {'; '.join(state.gaps)}")
    names = {item["metadata"]["name"] for item in state.nodes if selects(args.selector, item)}
    return replace(state, slices=[item for item in state.slices if item["spec"].get("nodeName") in names])


def tell_gaps(gaps: Iterable[str]) -> None:
    """Report gaps on standard error: a table without the missing objects would look complete."""
    for gap in gaps:
        print(f"not read: {printable(gap)}", file=sys.stderr)


def is_unread(state: "ClusterState", resource: str) -> bool:
    """Return whether objects of this kind (``resourceslices``) could not be read."""
    return any(gap.startswith(f"{resource}:") for gap in state.gaps)


def client(kubeconfig: Kubeconfig) -> "RestClient":
    """Return a client that waits for slow API servers, and logs only errors, so that its log does not mix with the
    output."""
    from dra_driver.core.telemetry import logs
    from dra_driver.kube.connection import Connection
    from dra_driver.kube.rest import RestClient, Timeouts

    logs.configure("text", "error")
    timeouts = Timeouts(read_s=30.0, total_s=60.0)
    return RestClient(Connection.load(kubeconfig.path, context=kubeconfig.context), timeouts=timeouts)


def listed_of_kueue(api: "RestClient", path: str) -> "Sequence[dict[str, object]] | None":
    """Return Kueue's objects of a path, None in a cluster without Kueue. Raises KubernetesApiError."""
    from dra_driver.kube import paths

    try:
        return [*api.list(path)["items"]]
    except NotFoundError:
        return None
    except ForbiddenError:  # also without Kueue: RBAC refuses before the server looks for the group
        try:
            api.get(paths.KUEUE)
        except NotFoundError:
            return None
        raise


OWNERS: Final = {
    "deployment": ("deploy",),
    "replicaset": ("rs",),
    "statefulset": ("sts",),
    "daemonset": ("ds",),
    "job": (),
    "cronjob": ("cj",),
}
"""Workloads that own pods, with their short names."""
_SHORT: Final = {"node": ("no",), "pod": ("po",), "claim": ("resourceclaim", "resourceclaims"), **OWNERS}


def add_targets(parser: argparse.ArgumentParser, *kinds: str, about: str) -> None:
    """Add the argument of `targets_of`."""
    parser.add_argument(
        "target", nargs="*", metavar="TYPE NAME | TYPE/NAME", help=f"TYPE is {', '.join(kinds)}; {about}"
    ).kinds = kinds  # type: ignore[attr-defined]  # for complete.py


def targets_of(words: Sequence[str], *kinds: str, default: str = "") -> list[tuple[str, str]]:
    """Return the kind and name of each ``TYPE/NAME``, or of ``TYPE NAME NAME``. ``default`` is the kind of plain names;
    kinds of ``OWNERS`` are valid after "pod". Raises ConfigurationError."""
    known = {word: kind for kind in kinds for word in (kind, f"{kind}s", *_SHORT[kind])}
    if not any("/" in word for word in words):
        if _kind(words[0], known):
            words = [f"{words[0]}/{name}" for name in words[1:]]
        elif default:
            words = [f"{default}/{name}" for name in words]
        if not words:
            raise ConfigurationError(f"{_expected(list(known.values()))}, got no name")
    return [_target(word if "/" in word or not default else f"{default}/{word}", known) for word in words]


def _target(word: str, known: Mapping[str, str]) -> tuple[str, str]:
    kind, _, name = word.partition("/")
    found = _kind(kind, known)
    if not found or not name or "/" in name:
        near = difflib.get_close_matches(kind.lower(), known, 1)
        hint = f"; did you mean {near[0]}?" if near and not found else ""
        raise ConfigurationError(f"{word[:80]!r}: {_expected(list(known.values()))}{hint}")
    return found, name


def _kind(word: str, known: Mapping[str, str]) -> str:
    return known.get(word.lower(), "") or known.get(word.lower().partition(".")[0], "")


def _expected(kinds: Sequence[str]) -> str:
    *others, last = (f"{each} NAME" for each in dict.fromkeys(kinds))
    return f"expected {', '.join(others)} or {last}"


def text_of(path: str) -> str | None:
    """Return the text of standard input for ``-``, of limited size; None for a file, which its reader opens."""
    if path != "-":
        return None
    text = sys.stdin.read(_MAX_STDIN + 1)
    if len(text) > _MAX_STDIN:
        raise ConfigurationError(f"standard input has more than {_MAX_STDIN >> 20} MiB")
    return text


def wants_colour() -> bool:
    """Return whether output is a terminal and NO_COLOR (https://no-color.org) is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def files_in(path: str) -> list[Path]:
    """Return the manifests of a file, a directory (not its subdirectories) or ``-``. Raises ConfigurationError."""
    place = Path(path)
    if path == "-" or not place.is_dir():
        return [place]
    found = sorted(item for item in place.iterdir() if item.suffix in (".yaml", ".yml", ".json") and item.is_file())
    if not found:
        raise ConfigurationError(f"no .yaml, .yml or .json file in {place}")
    return found

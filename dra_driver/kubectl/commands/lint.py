"""``kubectl dra lint``: check manifests before they are applied, or the objects of a cluster."""

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from dra_driver import __version__
from dra_driver.core import yaml_text
from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.state import KINDS, ClusterState, identity
from dra_driver.kubectl import lint
from dra_driver.kubectl.commands import source
from dra_driver.kubectl.commands.listing import add_output, print_document, print_text
from dra_driver.kubectl.lint import ManifestSource
from dra_driver.kubectl.lint.finding import LintReport, as_github, as_sarif, as_text, document_of

DESCRIPTION: Final = """\
Check DeviceClasses, ResourceClaims, ResourceClaimTemplates and the pods that use them: in files, or without PATH in the
cluster. With PATH, --cluster and --cluster-state also resolve names in a cluster.
"""
EPILOG: Final = """\
exit status: 0 no errors, 1 errors (with --strict also warnings), 2 wrong usage.
A comment `# dra-lint: allow DRA018` suppresses a finding on its line and the next, `allow-file` in the whole file.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, directories, or - for standard input")
    parser.add_argument("--cluster", action="store_true", help="with PATH: also resolve names in the cluster")
    parser.add_argument("--cluster-state", metavar="FILE", help="use a file of `kubectl dra snapshot` as the cluster")
    source.add_kubeconfig(parser)
    parser.add_argument("-n", "--namespace", metavar="NAME", help="without PATH: only objects of this namespace")
    parser.add_argument("--strict", action="store_true", help="treat warnings as errors")
    add_output(parser, "json", "yaml", "github", "sarif", default="text")


def run(args: argparse.Namespace) -> int:
    state = _state(args)
    known = lint.known_from_cluster(state) if state is not None else lint.known_from_catalog()
    sources: Iterable[ManifestSource]
    sources = lint.collect(args.paths, sys.stdin.buffer.read) if args.paths else _stored(state, args.namespace)
    report = lint.lint(sources, known)
    if state is not None:
        source.tell_gaps(state.gaps)
    _print(report.strict() if args.strict else report, args.output)
    nothing_read = state is not None and not args.paths and bool(state.gaps) and not (state.claims or state.classes)
    return 1 if nothing_read or (report.strict() if args.strict else report).failed else 0


def _state(args: argparse.Namespace) -> ClusterState | None:
    if args.cluster and args.cluster_state:
        raise ConfigurationError("--cluster and --cluster-state cannot be combined; use one of them")
    if args.cluster_state:
        return source.state_in_file(args.cluster_state)
    if args.paths and not args.cluster:
        return None
    return source.live_state(source.kubeconfig_of(args), args.namespace if not args.paths else None)


_NAMES: Final = ("name", "generateName", "namespace")
"""Checked metadata. Labels are excluded: a tenant can store a megabyte in them."""


def _stored(state: ClusterState | None, namespace: str | None) -> Iterator[ManifestSource]:
    """Yield the cluster's objects as texts, without objects that a controller created from other objects."""
    if state is None:
        return
    kinds = {kind.field: kind for kind in KINDS}
    for kind in (kinds[field] for field in ("classes", "templates", "claims", "pods")):
        for item in getattr(state, kind.field):
            metadata = item.get("metadata") or {}
            if metadata.get("ownerReferences") or (namespace and metadata.get("namespace", namespace) != namespace):
                continue
            kept = {key: value for key, value in item.items() if key != "status"}
            kept["metadata"] = {key: metadata[key] for key in _NAMES if key in metadata}
            name = "/".join(filter(None, identity(item)))
            text = yaml_text.dump({"apiVersion": kind.api_version, "kind": kind.kind, **kept})
            yield ManifestSource(name=f"cluster: {kind.kind} {name}", text=text)


def _print(report: LintReport, form: str) -> None:
    if form in ("json", "yaml"):
        print_document(form, document_of(report))
    elif form == "text":
        print_text(as_text(report, colour=source.wants_colour()))
    else:
        print(as_github(report) if form == "github" else as_sarif(report, __version__))

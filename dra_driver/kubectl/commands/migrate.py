"""``kubectl dra migrate``: set-ups of the device plugin, the GPU Operator and mig-parted as objects for this driver."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.commands.kubeconfig import add_kubeconfig, kubeconfig_of

if TYPE_CHECKING:
    from dra_driver.kubectl.lint import ManifestSource
    from dra_driver.kubectl.migrate import InputDocument, Translation

DESCRIPTION: Final = """\
Translate what was written for NVIDIA's device plugin into objects for DRA: its config and ConfigMaps of configs, a
ClusterPolicy, mig-parted's config, values of both charts and of NVIDIA's DRA driver, and workloads that ask for
nvidia.com/gpu, nvidia.com/mig-* or shares, with their node selectors. Prints GpuPolicies, DeviceClasses,
ResourceClaimTemplates, changed workloads and the chart's values, and a report that names every field: carried over,
changed meaning, or not carried over and why. Nothing is written to a cluster.

  kubectl dra migrate deployment.yaml > migrated.yaml          the report is on stderr
  kubectl dra migrate manifests/ config.yaml --output out/     one file for each kind of object, and the report
  kubectl get nodes -o yaml | kubectl dra migrate - mig.yaml   labels of nodes say which configuration each has
  kubectl dra migrate --from-cluster --report report.json      what is in the cluster, with your rights
  helm get values gpu-operator -n gpu-operator -a | kubectl dra migrate -
"""
EPILOG: Final = """\
exit status: 0 everything was read, 1 an input could not be read (the others are translated), 2 wrong usage.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "migrate",
        help="translate set-ups of the device plugin and the GPU Operator",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, folders, or - for standard input")
    parser.add_argument("--from-cluster", action="store_true", help="also read the cluster's objects")
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", help="with --from-cluster: workloads of this namespace alone"
    )
    add_kubeconfig(parser)
    parser.add_argument(
        "--keep-extended-resources", action="store_true",
        help="leave workloads as they are that DeviceClasses with an extended resource can serve",
    )  # fmt: skip
    parser.add_argument(
        "--gpu-memory", metavar="QUANTITY", help="memory of one GPU that replicas share by MPS, such as 80Gi"
    )
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")
    parser.add_argument("-o", "--format", choices=("yaml", "json"), default="yaml", help="default: yaml")
    parser.add_argument("--output", metavar="DIR", help="write files into this folder, which must be new or empty")
    parser.add_argument("--report", metavar="FILE", help="write the report there; as JSON if the name ends in .json")


def run(args: argparse.Namespace) -> int:
    """Prints objects and report, and returns 1 if an input could not be read."""
    from dra_driver.kubectl.commands.migrate_files import check_folder, write_folder, write_report
    from dra_driver.kubectl.migrate import MigrateOptions, summary, translate

    if not args.paths and not args.from_cluster:
        raise ConfigurationError("nothing to translate: give files, folders, - for standard input, or --from-cluster")
    if args.output:
        check_folder(Path(args.output))
    options = MigrateOptions(
        driver=args.driver, keep=args.keep_extended_resources, gpu_memory_mib=_mebibytes(args.gpu_memory)
    )
    problems: list[str] = []
    found = translate(_documents(args, problems), options, _read_text)
    found.problems[:0] = problems
    if args.output:
        write_folder(Path(args.output), found)
    elif args.format == "json":
        print(json.dumps(_as_json(found), indent=2))
    else:
        sys.stdout.write(_as_yaml(found))
    if args.report:
        write_report(Path(args.report), found)
        print(summary(found), file=sys.stderr)
    elif args.format != "json":
        _print_report(found, sys.stdout if args.output else sys.stderr)
    return 1 if found.problems else 0


def _documents(args: argparse.Namespace, problems: list[str]) -> "Iterator[InputDocument]":
    """The documents of all sources; what cannot be read is added to ``problems``."""
    from dra_driver.kubectl.lint import collect

    for source in collect(args.paths, sys.stdin.buffer.read) if args.paths else ():
        yield from _of_source(source, problems)
    if args.from_cluster:
        from dra_driver.kubectl.commands.migrate_cluster import cluster_documents
        from dra_driver.kubectl.commands.source import client

        yield from cluster_documents(client(kubeconfig_of(args)), args.namespace, problems)


def _of_source(source: "ManifestSource", problems: list[str]) -> "Iterable[InputDocument]":
    from dra_driver.kubectl.lint import plain_documents
    from dra_driver.kubectl.migrate import InputDocument

    documents, wrong = plain_documents(source)
    problems += wrong
    return [
        InputDocument(source=source.name, number=each.number, value=each.value, line=each.line, lines=each.lines)
        for each in documents
    ]


def _read_text(text: str, where: str) -> "Sequence[InputDocument]":
    """The documents of a text inside another document. Raises ConfigurationError."""
    from dra_driver.kubectl.lint import ManifestSource

    problems: list[str] = []
    found = list(_of_source(ManifestSource(name=where, text=text), problems))
    if problems:
        raise ConfigurationError(problems[0])
    return found


def _as_yaml(found: "Translation") -> str:
    """Documents that can be applied, and the chart's values as a comment: they are no object."""
    from dra_driver.kubectl.commands.migrate_files import dump

    text = "".join(f"---\n{dump(each)}" for each in found.objects)
    if found.values:
        lines = dump(found.values).splitlines()
        text += "---\n# Values for this driver's chart (helm upgrade --install ... --values FILE):\n"
        text += "".join(f"#   {line}\n" for line in lines)
    return text


def _as_json(found: "Translation") -> dict[str, Any]:
    from dra_driver.kubectl.migrate import as_json

    return {"objects": found.objects, "values": found.values, "report": as_json(found)}


def _print_report(found: "Translation", stream: Any) -> None:
    from dra_driver.kubectl.migrate import as_text

    print(as_text(found), file=stream)


def _mebibytes(text: str | None) -> int:
    from dra_driver.core.quantity import Quantity

    if text is None:
        return 0
    try:
        found = Quantity.parse(text).as_int() >> 20
    except ValueError as error:
        raise ConfigurationError(f"--gpu-memory: {error}") from error
    if not 256 <= found <= 4 << 20:
        raise ConfigurationError(f"--gpu-memory: expected 256Mi to 4Ti, got {text[:40]!r}")
    return found

"""``kubectl dra migrate``: translate device plugin, GPU Operator and mig-parted configurations."""

import argparse
import itertools
import json
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from dra_driver.core import yaml_text
from dra_driver.core.document import to_wire
from dra_driver.core.errors import ConfigurationError, ForbiddenError, KubernetesApiError, NotFoundError
from dra_driver.core.quantity import Quantity
from dra_driver.kube.devices import Wire
from dra_driver.kubectl.commands.listing import add_output, print_document
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of
from dra_driver.kubectl.lint import ManifestSource, collect, plain_documents
from dra_driver.kubectl.migrate import (
    InputDocument,
    MigrateOptions,
    Migration,
    Translation,
    as_text,
    report_of,
    summary,
    translate,
)

DESCRIPTION: Final = """\
Translate device plugin configs, ClusterPolicies, mig-parted configs, values of the device plugin's, GPU Operator's and
NVIDIA DRA driver's charts, and workloads that request nvidia.com/gpu, nvidia.com/mig-* or shares. Prints GpuPolicies,
DeviceClasses, ResourceClaimTemplates, changed workloads, chart values and a report on every field, and writes nothing
to the cluster.

  kubectl dra migrate deployment.yaml > migrated.yaml          report on stderr
  kubectl dra migrate manifests/ config.yaml --output-dir out/     one file per kind of object, and the report
  kubectl get nodes -o yaml | kubectl dra migrate - mig.yaml   node labels select each node's configuration
  kubectl dra migrate --from-cluster --report report.json      the cluster's objects
  helm get values gpu-operator -n gpu-operator -a | kubectl dra migrate -
"""
EPILOG: Final = """\
exit status: 0 all inputs read, 1 an input is unreadable (the rest is translated), 2 wrong usage.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, directories, or - for standard input")
    parser.add_argument("--from-cluster", action="store_true", help="also read the cluster's objects")
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", help="with --from-cluster: only workloads of this namespace"
    )
    add_kubeconfig(parser)
    parser.add_argument(
        "--keep-extended-resources",
        action="store_true",
        help="keep workloads that a DeviceClass with an extended resource can serve",
    )
    parser.add_argument("--gpu-memory", metavar="QUANTITY", help="memory of a GPU shared by MPS, such as 80Gi")
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")
    add_output(parser, "json", default="yaml")
    parser.add_argument("--output-dir", metavar="DIR", help="write files to this new or empty directory")
    parser.add_argument("--report", metavar="FILE", help="write the report to FILE; JSON if it ends in .json")


def run(args: argparse.Namespace) -> int:
    if not args.paths and not args.from_cluster:
        raise ConfigurationError("no input: give files, directories, - for standard input, or --from-cluster")
    if args.output_dir:
        check_folder(Path(args.output_dir))
    options = MigrateOptions(
        driver=args.driver, keep=args.keep_extended_resources, gpu_memory_mib=_mebibytes(args.gpu_memory)
    )
    problems: list[str] = []
    found = translate(_documents(args, problems), options, _read_text)
    found.problems[:0] = problems
    if args.output_dir:
        write_folder(Path(args.output_dir), found)
    elif args.output == "json":
        print_document("json", Migration(items=found.objects, values=found.values, report=report_of(found)))
    else:
        sys.stdout.write(_as_yaml(found))
    if args.report:
        write_report(Path(args.report), found)
        print(summary(found), file=sys.stderr)
    elif args.output != "json":
        print(as_text(found), file=sys.stdout if args.output_dir else sys.stderr)
    return 1 if found.problems else 0


def _documents(args: argparse.Namespace, problems: list[str]) -> Iterator[InputDocument]:
    for source in collect(args.paths, sys.stdin.buffer.read) if args.paths else ():
        yield from _of_source(source, problems)
    if args.from_cluster:
        yield from cluster_documents(client(kubeconfig_of(args)), args.namespace, problems)


def _of_source(source: ManifestSource, problems: list[str]) -> Iterable[InputDocument]:
    documents, wrong = plain_documents(source)
    problems += wrong
    return [
        InputDocument(source=source.name, number=each.number, value=each.value, line=each.line, lines=each.lines)
        for each in documents
    ]


def _read_text(text: str, where: str) -> Sequence[InputDocument]:
    problems: list[str] = []
    found = list(_of_source(ManifestSource(name=where, text=text), problems))
    if problems:
        raise ConfigurationError(problems[0])
    return found


def _as_yaml(found: Translation) -> str:
    text = "".join(f"---\n{dump(each)}" for each in found.objects)
    if found.values:
        lines = dump(found.values).splitlines()
        text += "---\n# Values for this driver's chart (helm upgrade --install ... --values FILE):\n"
        text += "".join(f"#   {line}\n" for line in lines)
    return text


def _mebibytes(text: str | None) -> int:
    if text is None:
        return 0
    try:
        found = Quantity.parse(text).as_int() >> 20
    except ValueError as error:
        raise ConfigurationError(f"--gpu-memory: {error}") from error
    if not 256 <= found <= 4 << 20:
        raise ConfigurationError(f"--gpu-memory: expected 256Mi to 4Ti, got {text[:40]!r}")
    return found


# --- ``--from-cluster`` reads objects without an owner.


class _Kind(NamedTuple):
    plural: str
    kind: str
    group: str = ""
    namespaced: bool = True
    optional: bool = False


KINDS: Final[Sequence[_Kind]] = (
    _Kind("clusterpolicies", "ClusterPolicy", "nvidia.com", namespaced=False, optional=True),
    _Kind("nodes", "Node", namespaced=False),
    _Kind("configmaps", "ConfigMap"),
    _Kind("resourcequotas", "ResourceQuota"),
    _Kind("limitranges", "LimitRange"),
    _Kind("deployments", "Deployment", "apps"),
    _Kind("statefulsets", "StatefulSet", "apps"),
    _Kind("daemonsets", "DaemonSet", "apps"),
    _Kind("replicasets", "ReplicaSet", "apps"),
    _Kind("cronjobs", "CronJob", "batch"),
    _Kind("jobs", "Job", "batch"),
    _Kind("pods", "Pod"),
)
_MARKS: Final = ("mig-configs", "migStrategy", "timeSlicing", "sharing")


class Lister(Protocol):
    """Subset of ``kube.rest.RestClient``."""

    def list(self, path: str, /) -> Wire: ...


def cluster_documents(rest: Lister, namespace: str | None, problems: list[str]) -> Iterator[InputDocument]:
    """Yield the objects; add missing permissions to ``problems``. Raises KubernetesApiError without an API server.

    ``namespace`` is for workloads and quotas; ConfigMaps are read in all namespaces.
    """
    for kind in KINDS:
        where = namespace if kind.namespaced and kind.plural != "configmaps" else None
        for item in _list_kind(rest, kind, where, problems):
            if _matters(kind, item):
                value = {"apiVersion": f"{kind.group}/v1".lstrip("/"), "kind": kind.kind, **_tidy(item)}
                yield InputDocument(source="cluster", number=1, value=value)


def _list_kind(rest: Lister, kind: _Kind, namespace: str | None, problems: list[str]) -> Sequence[Wire]:
    root = f"/apis/{kind.group}/v1" if kind.group else "/api/v1"
    inside = f"/namespaces/{namespace}" if namespace else ""
    try:
        found: Sequence[Wire] = rest.list(f"{root}{inside}/{kind.plural}")["items"]
    except ForbiddenError:
        resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
        place = f" in namespace {namespace}" if namespace else " in all namespaces" if kind.namespaced else ""
        problems.append(f"cluster: skipped {resource}{place}: no permission to list them")
        return ()
    except KubernetesApiError as error:
        is_missing = isinstance(error, NotFoundError)
        if not is_missing and not kind.optional:
            raise
        if is_missing != kind.optional:
            problems.append(f"cluster: {kind.plural}: {error}")
        return ()
    return found


def _matters(kind: _Kind, item: Wire) -> bool:
    """Return whether nothing owns the object, a ConfigMap looks like a configuration, and a pod has not ended."""
    if (item.get("metadata") or {}).get("ownerReferences") and kind.kind not in {"ConfigMap", "Node"}:
        return False
    if kind.kind == "ConfigMap":
        return any(mark in str(text) for text in (item.get("data") or {}).values() for mark in _MARKS)
    return kind.kind != "Pod" or (item.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}


def _tidy(item: Wire) -> dict[str, object]:
    """Remove fields that a pod gets when it is created: its node, priority and mounted token."""
    spec = item.get("spec") or {}
    if "containers" not in spec:
        return dict(item)
    tokens = {
        str(each.get("name")) for each in spec.get("volumes") or () if "kube-api-access-" in str(each.get("name"))
    }
    kept = {key: value for key, value in spec.items() if key not in {"nodeName", "priority", "preemptionPolicy"}}
    kept["volumes"] = [each for each in spec.get("volumes") or () if each.get("name") not in tokens]
    for part in ("containers", "initContainers"):
        kept[part] = [_untoken(each, tokens) for each in spec.get(part) or ()]
    return {**item, "spec": {key: value for key, value in kept.items() if value != []}}


def _untoken(container: Wire, tokens: set[str]) -> dict[str, object]:
    mounts = [each for each in container.get("volumeMounts") or () if each.get("name") not in tokens]
    return {
        key: value for key, value in {**container, "volumeMounts": mounts}.items() if key != "volumeMounts" or value
    }


def check_folder(folder: Path) -> None:
    """Raise ConfigurationError unless the directory is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"--output-dir {folder}: expected a new or empty directory")


def write_folder(folder: Path, found: Translation) -> None:
    """Write objects by kind, workloads by input, the chart's values and the report. Raises ConfigurationError."""
    files: dict[str, str] = {}
    groups = {"1-policies.yaml": found.policies, "2-classes.yaml": found.classes, "3-templates.yaml": found.templates}
    for name, objects in groups.items():
        if objects:
            files[name] = "".join(f"---\n{dump(each)}" for each in objects)
    names: dict[str, str] = {}
    for source, value in found.workloads:
        if source not in names:
            stem = "".join(char if char.isalnum() or char in "-_." else "-" for char in Path(source).stem) or "input"
            number = itertools.count(2)
            names[source] = f"4-{stem[:80]}.yaml"
            while names[source] in files:
                names[source] = f"4-{stem[:80]}-{next(number)}.yaml"
        files[names[source]] = files.get(names[source], "") + f"---\n{dump(value)}"
    if found.values:
        files["values.yaml"] = dump(found.values)
    files["report.txt"] = as_text(found) + "\n"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in files.items():
            _write(folder / name, text)
    except OSError as error:
        raise ConfigurationError(f"--output-dir {folder}: {error.strerror or error}") from error


def write_report(path: Path, found: Translation) -> None:
    """Raises ConfigurationError."""
    text = json.dumps(to_wire(report_of(found)), indent=2) if path.suffix == ".json" else as_text(found)
    try:
        _write(path, text + "\n")
    except OSError as error:
        raise ConfigurationError(f"--report {path}: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    """Write for the owner only, despite the umask: environments may have secrets. ``path`` may be a pipe."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), 0o600)
        file.write(text)


def dump(value: object) -> str:
    return yaml_text.dump(value, width=4096)

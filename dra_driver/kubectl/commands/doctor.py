"""``kubectl dra doctor``: find the first failing layer between a GPU and a container."""

import argparse
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from dra_driver.core.command_line.main import interrupt_once
from dra_driver.core.errors import ConfigurationError, DraError, KubernetesApiError, NotFoundError
from dra_driver.core.text import printable
from dra_driver.kubectl.commands.listing import add_output, duration, print_document, print_text
from dra_driver.kubectl.commands.source import (
    add_kubeconfig,
    add_targets,
    kubeconfig_of,
    namespace_of,
    targets_of,
    wants_colour,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dra_driver.core.finding import Finding
    from dra_driver.diagnose.doctor.cluster import DoctorScope
    from dra_driver.diagnose.doctor.facts import ClusterFacts
    from dra_driver.diagnose.doctor.report import DoctorReport
    from dra_driver.kubectl.explain import Explanation

DESCRIPTION: Final = """\
Find the first failing layer between a GPU and a container, with observation, expectation and next step. Only reads API
objects, unless --on-node runs a pod. Missing permissions are reported, and do not stop the checks.

  kubectl dra doctor                            the cluster
  kubectl dra doctor node gpu-a                 one node and the cluster-wide checks
  kubectl dra doctor node gpu-a --on-node       also check driver and runtime from a pod on the node
  kubectl dra doctor pod train -n team-a        a pod: its claims, its node, and `explain`
  kubectl dra doctor claim shared -o json
  kubectl dra doctor --snapshot bundle.tar.gz
"""
EPILOG: Final = """\
exit status: 0 all checks passed; 1 a layer fails; 2 some checks or the API server do not answer
"""
MOST_TIMEOUT_S: Final = 600.0
_ONE_QUESTION_S: Final = 15.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser, "node", "pod", "claim", about="default: the cluster")
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NAME",
        help="of the pod or claim (default: the namespace of the context)",
    )
    add_output(parser, "json", "yaml", default="text")
    parser.add_argument("-v", "--verbose", action="store_true", help="show passed checks and complete lists")
    parser.add_argument(
        "--timeout",
        type=partial(duration, most_s=MOST_TIMEOUT_S),
        default="30s",
        metavar="DURATION",
        help="limit for all API requests (default: 30s)",
    )
    add_driver_namespace(parser)
    group = parser.add_argument_group(
        "on the node itself",
        "with node/NAME or pod/NAME: run `dra-driver doctor` in a pod with the DaemonSet's image and privileges, "
        "read-only host directories and the container runtime's socket. Needs permission to get daemonsets.apps, and "
        "to create, get and delete pods and get pods/log in the driver's namespace",
    )
    group.add_argument("--on-node", action="store_true", help="also check from a pod on the node")
    add_pod_flags(group)
    group.add_argument(
        "--cri-socket", metavar="FILE", help="the container runtime's socket on the host (default: search for it)"
    )
    source = parser.add_mutually_exclusive_group()
    add_kubeconfig(parser, source)
    source.add_argument(
        "--snapshot",
        "--cluster-state",
        dest="snapshot",
        metavar="FILE",
        help="offline: a file of `kubectl dra support-bundle` or `kubectl dra snapshot`",
    )


def run(args: argparse.Namespace) -> int:
    from dra_driver.core.finding import by_layer, coloured
    from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
    from dra_driver.diagnose.doctor.report import document_of, merged, render

    namespace, scope = namespace_of(args), DoctorScope()
    if args.target:
        (kind, name), *more = targets_of(args.target, "node", "pod", "claim")
        if more:
            raise ConfigurationError(f"expected one object, got {len(more) + 1}")
        scope = DoctorScope(kind=kind, namespace="" if kind == "node" else namespace, name=name)
    if args.on_node and (args.snapshot or scope.kind not in ("node", "pod")):
        raise ConfigurationError("--on-node needs a cluster and node/NAME or pod/NAME")
    facts, took_s = facts_of(args)
    report = diagnose(facts, scope, clock=time.monotonic, took_s=took_s)
    explained = _explained(facts, scope) if scope.kind in ("pod", "claim") else None
    if scope.kind == "cluster" and not args.snapshot:
        report = replace(report, findings=by_layer((*report.findings, *_of_kueue(args, facts))))
    if args.on_node:
        report = merged(report.target, [report, report_of_node(args, scope)])
    if explained is not None:
        report = replace(report, findings=by_layer((*report.findings, explained[0])))
    if args.output != "text":
        print_document(args.output, document_of(report, explained[2] if explained is not None else None))
        return report.exit_status
    print_text(render(report, *([coloured] if wants_colour() else []), verbose=args.verbose))
    if explained is not None and explained[1]:
        print_text(f"\n{explained[1]}")
    return report.exit_status


def facts_of(args: argparse.Namespace) -> "tuple[ClusterFacts, float]":
    """Return the selected facts, and the seconds of reading. Raises ConfigurationError."""
    if args.snapshot:
        from dra_driver.diagnose.doctor import bundle
        from dra_driver.diagnose.doctor.facts import facts_of_state
        from dra_driver.kube.state_file import load

        path = args.snapshot
        return bundle.read(path) if bundle.is_bundle(path) else facts_of_state(load(path)), 0.0
    from dra_driver.core.telemetry import logs
    from dra_driver.diagnose.doctor.reading import read_facts
    from dra_driver.kube.connection import Connection
    from dra_driver.kube.rest import RestClient, Timeouts

    began = time.monotonic()
    chosen = kubeconfig_of(args)
    connection = Connection.load(chosen.path, context=chosen.context)
    logs.configure("text", "error")
    found = read_facts(
        RestClient(connection, timeouts=Timeouts(total_s=min(_ONE_QUESTION_S, args.timeout))),
        server={"address": connection.base_url, "source": connection.source},
        namespace=namespace_of(args),
        driver_namespace=args.driver_namespace,
        total_s=args.timeout,
    )
    return found, time.monotonic() - began


def _explained(facts: "ClusterFacts", scope: "DoctorScope") -> "tuple[Finding, str, Explanation] | None":
    """Return the answer of `explain` as a finding, text and JSON; None without pods or claims in the facts."""
    from dra_driver.core.finding import Finding, Layer, Status
    from dra_driver.kubectl.explain import claim_subject, explain, pod_subject, render, scheduler_for

    if not facts.knows("pods" if scope.kind == "pod" else "claims"):
        return None
    state = facts.state()
    try:
        subject = (pod_subject if scope.kind == "pod" else claim_subject)(state, scope.namespace, scope.name)
        answer = explain(state, subject, scheduler=scheduler_for(state))
    except DraError as error:
        print(f"kubectl dra doctor: explain: {error}", file=sys.stderr)
        return None
    good = answer.verdict.answer.is_good
    finding = Finding(
        check="explain",
        layer=Layer.WORKLOAD,
        status=Status.OK if good else Status.FAIL,
        object=f"{scope.kind}/{scope.namespace}/{scope.name}",
        seen=answer.verdict.sentence,
        expected="" if good else "healthy devices that the scheduler can allocate",
        fix="" if good else f"kubectl dra explain {scope.kind}/{scope.name} -n {scope.namespace} lists the devices.",
    )
    return finding, render(answer), answer


def _of_kueue(args: argparse.Namespace, facts: "ClusterFacts") -> "Iterator[Finding]":
    """Yield warnings about Kueue's mappings, and about Workloads that wait for another reason than quota."""
    import yaml

    from dra_driver.core.finding import Layer, warn
    from dra_driver.core.request_rights import missing_right
    from dra_driver.kube import paths
    from dra_driver.kubectl.capacity import drift
    from dra_driver.kubectl.commands.source import client, listed_of_kueue
    from dra_driver.kubectl.explain import FIX_MAPPINGS, misconfigured

    api, found = client(kubeconfig_of(args)), []
    try:
        if (workloads := listed_of_kueue(api, paths.workloads(None))) is None:
            return
        for cause, others in misconfigured(workloads):
            found.append((f"{cause.object}{f' and {others} more' if others else ''}: {cause.message}", cause.fix))
        data = api.get("/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config").get("data") or {}
        slices = facts.items("slices") if facts.knows("slices") else ()
        seen = [drift(text, slices, driver) for text in data.values() for driver in facts.driver_names if slices]
        found += [(f"mappings of Kueue's Configuration: {each}", FIX_MAPPINGS) for each in filter(None, seen)]
    except NotFoundError:  # installed in another way
        where = "no ConfigMap kueue-manager-config in namespace kueue-system"
        print(f"note: mappings of Kueue are not compared: {where}; see `kubectl dra kueue config`", file=sys.stderr)
    except (KubernetesApiError, ConfigurationError, yaml.YAMLError, ValueError) as error:
        print(f"note: Kueue is not checked: {printable(missing_right(error))}", file=sys.stderr)
    for what, fix in found:
        expected = "mappings and jobs that match the published devices"
        yield replace(
            warn(what, expected, f"{fix[0].upper()}{fix[1:]}.", "cluster", layer=Layer.WORKLOAD), check="kueue"
        )


def add_driver_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--driver-namespace",
        default="dra-driver",
        metavar="NAME",
        help="namespace of the driver, for users who cannot list all DaemonSets (default: dra-driver)",
    )


def add_pod_flags(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--daemonset", metavar="NAME", default="dra-driver-node", help="of the node process (default: dra-driver-node)"
    )
    parser.add_argument("--keep", action="store_true", help="do not delete the pod")


def report_of_node(args: argparse.Namespace, scope: "DoctorScope") -> "DoctorReport":
    """Return the report of the scope's node, with an unknown finding if its pod fails.

    Raises ConfigurationError where node, pod or DaemonSet do not exist.
    """
    from dra_driver.diagnose.doctor.on_node import node_of_pod, unanswered, visit_node
    from dra_driver.kube.pod_run import PodPlace
    from dra_driver.kubectl.commands.source import client

    def say(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    api, is_pod = client(kubeconfig_of(args)), scope.kind == "pod"
    interrupt_once()
    try:
        place = PodPlace(
            command="kubectl dra doctor --on-node",
            node=node_of_pod(api, scope.namespace, scope.name) if is_pod else scope.name,
            namespace=args.driver_namespace,
            daemon_set=args.daemonset,
            keep=args.keep,
            namespace_flag="--driver-namespace",
        )
        pods = (f"{scope.namespace}/{scope.name}",) if is_pod else ()
        return visit_node(api, place, say, pods=pods, cri_socket=args.cri_socket)
    except ConfigurationError:
        raise
    except DraError as error:
        return unanswered(f"{scope.kind}/{scope.name}", str(error))

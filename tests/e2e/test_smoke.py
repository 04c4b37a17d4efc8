"""`kubectl dra smoke` on a real cluster: every form, and nothing left behind whatever ends it.

The pods run an image that the node has (E2E_SMOKE_IMAGE, default ubuntu:24.04), as no root and under the Pod Security
Standard "restricted".
"""

import json
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_driver.kube import paths
from dra_driver.kubectl.commands import kubectl
from dra_driver.sim.demo.requirements import Requirements
from dra_driver.sim.objects import is_ready
from tests.e2e.cluster import GONE_S, KUBECTL_DRA, RealCluster, wait
from tests.e2e.gates import PARTITIONS, SHARES
from tests.e2e.host import Host
from tests.fakes.node_process import NodeProcess
from tests.rights.accounts import Account, token

log = logging.getLogger(__name__)
IMAGE = os.environ.get("E2E_SMOKE_IMAGE", "ubuntu:24.04")
GPUS = "1xh100-sxm5-80gb,1xl4-24gb"
PROFILES = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
POLICY = Path(__file__).parent / "policies" / "time-sliced-l4.yaml"
REQUIREMENTS = Requirements(nodes=(("host", GPUS),), policies=(POLICY,))
LABEL = {"labelSelector": "gpu.dra-driver.io/smoke-run"}
TIMEOUT_S = 15
DEADLINE_S = TIMEOUT_S + 30 + 10
"""Of the Job, and from its end to its deletion."""


@pytest.fixture
def flags(cluster: RealCluster, own_host: Host, namespace: str, kubeconfig: str, node: str) -> list[str]:
    """Of a command for this node, in a namespace under the Pod Security Standard "restricted"."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.rest.merge_patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": labels}})
    wait(lambda: None if is_ready(cluster.rest.get(paths.node(node))) else "the node is not ready", GONE_S)
    more = ["--image", IMAGE, "--node", node, "--timeout", str(TIMEOUT_S)]
    return ["smoke", "--kubeconfig", kubeconfig, "-n", namespace, *more, "-o", "json"]


def left(cluster: RealCluster, namespace: str) -> str:
    lists = {"job": paths.jobs(namespace), "pod": paths.pods(namespace), "claim": paths.resource_claims(namespace)}
    items = ((kind, item) for kind, path in lists.items() for item in cluster.rest.list(path, LABEL)["items"])
    return ", ".join(f"{kind} {item['metadata']['name']}" for kind, item in items)


def printed(capsys: pytest.CaptureFixture[str], flags: list[str]) -> tuple[int, Any]:
    capsys.readouterr()
    status = kubectl.main(flags)
    return status, json.loads(capsys.readouterr().out)


def test_every_form_is_what_was_allocated(
    cluster: RealCluster, namespace: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = printed(capsys, [*flags, "--timeout", "120"])
    kinds = {(item["form"], item["profile"]): item["status"] for item in report["items"]}
    failed = "; ".join(f"{item['layer']}: {item['message']}" for item in report["items"] if item["layer"])
    partitions = [("mig", profile) for profile in PROFILES] if cluster.gates[PARTITIONS] else []
    wanted = [("gpu", ""), *partitions, *([("shared", "TimeSlicing")] if cluster.gates[SHARES] else [])]
    assert (status, kinds) == (0, dict.fromkeys(wanted, "ok")), failed
    assert left(cluster, namespace) == ""


@pytest.fixture
def running(cluster: RealCluster, namespace: str, flags: list[str]) -> Iterator[Any]:
    """A command with a try on its way: the claim is prepared, the image is never there."""
    command = [*KUBECTL_DRA, *flags, "--kind", "gpu", "--image", "example.invalid/x:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait(lambda: None if "pod" in left(cluster, namespace) else "no pod yet", GONE_S)
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_deletes_its_objects(
    cluster: RealCluster, namespace: str, running: "subprocess.Popen[str]", number: signal.Signals
) -> None:
    running.send_signal(number)
    out, _ = running.communicate(timeout=60)
    assert (running.returncode, json.loads(out)["interrupted"]) == (130, True)
    wait(lambda: left(cluster, namespace), GONE_S)


def test_a_killed_run_leaves_nothing_for_long(
    cluster: RealCluster, namespace: str, running: "subprocess.Popen[str]"
) -> None:
    """The Job's deadline ends its pod, and Kubernetes deletes the Job with all that it owns."""
    running.kill()
    begin = time.monotonic()
    wait(lambda: left(cluster, namespace), DEADLINE_S + GONE_S)
    log.info("nothing is left %.0f s after SIGKILL", time.monotonic() - begin)


@pytest.fixture
def silent_driver(flags: list[str], own_driver: NodeProcess, own_host: Host) -> Iterator[None]:
    """A node whose driver has stopped, so that no pod gets further than its prepare. ``flags`` would start it."""
    assert flags
    own_driver.end()
    yield
    own_host.restart()


@pytest.mark.usefixtures("silent_driver")
def test_a_stopped_driver_is_named(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """While its slices are still there, and after the kubelet has deleted them.

    A kubelet that had begun to prepare the claim keeps pod and claim until the driver is back: the report names them.
    """
    status, report = printed(capsys, [*flags, "--kind", "gpu"])
    [found] = report["items"]
    log.info("%s: %s", found["layer"], found["message"])
    assert (status, found["status"]) == (1, "failed")
    assert (found["layer"] == "prepare" and "not registered" in found["message"]) or found["layer"] == "slices"
    assert found["fix"].startswith("kubectl dra doctor node/")


@pytest.fixture
def powerless(cluster: RealCluster, namespace: str, kubeconfig: str, tmp_path: Path) -> str:
    account = Account(name="default", namespace=namespace, token=token(cluster.rest, "default", namespace))
    return str(account.kubeconfig(Path(kubeconfig), tmp_path / "kubeconfig"))


def test_a_user_without_rights_reads_which_are_missing(
    cluster: RealCluster, namespace: str, flags: list[str], powerless: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert kubectl.main([*flags, "--kubeconfig", powerless]) == 2
    said = capsys.readouterr().err
    for right in (
        "list resourceslices.resource.k8s.io;",
        f"create jobs.batch in namespace {namespace}",
        f"watch resourceclaims.resource.k8s.io in namespace {namespace}",
        f"get pods/log in namespace {namespace}",
    ):
        assert right in said
    assert left(cluster, namespace) == ""

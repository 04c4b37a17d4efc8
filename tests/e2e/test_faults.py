"""Faults that only a cluster has: rows of docs/internals/faults.md, beside those of tests/chaos.

With FAULT_RECORDS set to a folder, the figures are taken with `scripts/faults_docs.py collect FOLDER lab`.
E2E_RUNTIME_RESTART names a command that restarts this host's container runtime.
"""

import os
import shlex
import signal
import subprocess
import time

import pytest

from tests.chaos.conftest import fault
from tests.chaos.stage import FaultRecord
from tests.e2e.cluster import REACH_S, RealCluster, wait
from tests.e2e.host import Folders, restart
from tests.e2e.test_node_process import KUBELET_RESTART, Pods, pods, steady
from tests.fakes.node_process import NodeProcess

__all__ = ["fault", "pods", "steady"]  # fixtures
RUNTIME_RESTART = os.environ.get("E2E_RUNTIME_RESTART")
RETRY_S = 180.0


def run(command: str) -> None:
    """Run a command that may leave a service behind: no pipes, which it would keep open."""
    subprocess.run(shlex.split(command), check=True, timeout=120, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds_until_a_new_pod_runs(pods: Pods, since: float) -> float:
    pods.make("next")
    pods.wait_ready("next", timeout_s=RETRY_S)
    seconds = time.monotonic() - since
    assert pods.gpu("next")
    return seconds


@pytest.mark.skipif(not RUNTIME_RESTART, reason="E2E_RUNTIME_RESTART names no command that restarts the runtime")
@pytest.mark.fault("containerd-restart")
def test_a_runtime_that_restarts_changes_nothing(
    own_driver: NodeProcess, steady: str, pods: Pods, node_folders: Folders, fault: FaultRecord
) -> None:
    before = node_folders.claims_in_journal(), node_folders.claims_with_files()
    since = time.monotonic()
    run(RUNTIME_RESTART or "")
    assert (node_folders.claims_in_journal(), node_folders.claims_with_files()) == before
    seconds = seconds_until_a_new_pod_runs(pods, since)
    fault.write(
        seconds=seconds, seen="the running pod kept its container and its GPU", kept=len(before[0]), of=len(before[0])
    )


@pytest.mark.skipif(not KUBELET_RESTART, reason="E2E_KUBELET_RESTART names no command that restarts the kubelet")
@pytest.mark.fault("kubelet-restart")
def test_a_kubelet_that_restarts_changes_nothing(
    cluster: RealCluster, steady: str, pods: Pods, node_folders: Folders, fault: FaultRecord
) -> None:
    before = node_folders.claims_in_journal(), node_folders.claims_with_files()
    count = len(cluster.slices())
    since = time.monotonic()
    run(KUBELET_RESTART or "")
    wait(lambda: None if len(cluster.slices()) == count else "slices are missing", REACH_S)
    seconds = seconds_until_a_new_pod_runs(pods, since)
    assert before[0] <= node_folders.claims_in_journal()
    fault.write(
        seconds=seconds,
        seen="slices deleted and published again; the running pod is as it was",
        kept=len(before[0]),
        of=len(before[0]),
    )


@pytest.mark.fault("kill-9")
def test_a_kill_changes_nothing_for_pods(
    own_driver: NodeProcess, steady: str, pods: Pods, node_folders: Folders, fault: FaultRecord
) -> None:
    before = node_folders.claims_in_journal()
    own_driver.end(signal.SIGKILL)
    since = time.monotonic()
    pods.make("waiting")
    seen = pods.wait_warning("FailedPrepareDynamicResources")
    restart(own_driver)
    pods.wait_ready("waiting", timeout_s=RETRY_S)
    assert before <= node_folders.claims_in_journal()
    fault.write(seconds=time.monotonic() - since, seen=seen, kept=len(before), of=len(before))

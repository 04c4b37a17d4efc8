"""A node whose journal is lost or damaged, which reboots, and from which the driver is removed; pods run meanwhile.

A reboot is another boot id, GPUs as they were before, and an empty CDI directory; E2E_KUBELET_RESTART and
E2E_CONTAINERD_RESTART, where they are set, restart the real kubelet and container runtime, too.
"""

import os
import shlex
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import GONE_S, RealCluster, containers, wait
from tests.e2e.forms import PODS, Forms, slice_of, whole
from tests.e2e.gates import PARTITIONS, SHARES
from tests.e2e.host import CDI_DIR, KUBELET_ROOT, STATE_DIR, Folders, Host
from tests.fakes.node_process import DriverProcess

THREE_H100 = (("gpu-a", "3xh100-sxm5-80gb"),)
POLICY = Path(__file__).parent / "policies" / "mps-minor-2.yaml"
REQUIREMENTS = Requirements(nodes=THREE_H100, policies=(POLICY,))

pytestmark = pytest.mark.needs(PARTITIONS, SHARES)


@pytest.fixture
def forms(own_host: Host, cluster: RealCluster, namespace: str) -> Iterator[Forms]:
    found = Forms(cluster, namespace)
    for name, request in PODS.items():
        found.create(name, request)
        found.wait_ready(name)
    yield found
    if not own_host.process.lives:
        own_host.restart()
    for pod in cluster.pods(namespace):
        found.delete(pod["metadata"]["name"])


def lose() -> None:
    for path in STATE_DIR.glob("state.db*"):
        path.unlink()


def overwrite() -> None:
    for path in STATE_DIR.glob("state.db-*"):
        path.unlink()
    (STATE_DIR / "state.db").write_bytes(os.urandom(65536))


def run(own_host: Host, subcommand: str, tmp_path: Path, *more: str) -> tuple[int, str]:
    kept = ("node_name", "simulate", "kubelet_registrar_dir", "kubelet_plugins_dir", "cdi_dir")
    flags = {name: own_host.process.flags[name] for name in kept}
    command = DriverProcess(subcommand, tmp_path, flags, own_host.process.environ).command()
    done = subprocess.run(
        [*command, *more], env=own_host.process.environ, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("break_journal", [lose, overwrite])
def test_pods_run_on_and_can_be_deleted_when_the_journal_is_gone(
    own_host: Host, forms: Forms, node_folders: Folders, tmp_path: Path, break_journal: Callable[[], None]
) -> None:
    before = {name: containers(forms.get(name)) for name in PODS}
    claims = node_folders.claims_in_journal()
    break_journal()
    forms.delete("small")
    own_host.process.end(signal.SIGKILL)
    status, text = run(own_host, "state", tmp_path)
    assert (status, "problem:" in text) == (1, True)
    own_host.restart()
    wait(lambda: None if len(node_folders.claims_in_journal()) == len(claims) - 1 else "being rebuilt", 60.0)
    rest = [name for name in PODS if name != "small"]
    assert {name: containers(forms.get(name)) for name in rest} == {name: before[name] for name in rest}
    forms.run("next", slice_of("1g.10gb"))
    forms.delete("next", *rest)
    wait(own_host.hardware.traces, GONE_S)
    assert node_folders.claims_in_journal() == node_folders.claims_with_files() == set()


def test_after_a_reboot_pods_get_their_gpus_anew(
    own_host: Host, forms: Forms, node_folders: Folders, tmp_path: Path
) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("another-boot\n")
    claims = node_folders.claims_in_journal()
    own_host.process.end(signal.SIGKILL)
    own_host.mps.end(signal.SIGKILL)
    (STATE_DIR / "simulated-gpus.json").unlink()
    for path in CDI_DIR.glob("k8s.gpu.nvidia.com-*.json"):
        path.unlink()
    for name in ("E2E_CONTAINERD_RESTART", "E2E_KUBELET_RESTART"):
        if command := os.environ.get(name):
            subprocess.run(
                shlex.split(command), check=True, timeout=60, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
    own_host.process.flags["boot_id_file"] = str(boot_id)
    try:
        own_host.mps.start()
        own_host.restart()
        wait(lambda: "they stay" if claims & node_folders.claims_in_journal() - _prepared_anew(boot_id) else None, 30.0)
        forms.delete(*PODS)
        for name in ("again", "other"):
            forms.run(name, slice_of("3g.40gb"))
            forms.sees(name)
        forms.delete("again", "other")
        wait(own_host.hardware.traces, GONE_S)
    finally:
        del own_host.process.flags["boot_id_file"]
        own_host.process.end()
        own_host.restart()


def _prepared_anew(boot_id: Path) -> set[str]:
    with closing(sqlite3.connect(f"file:{STATE_DIR / 'state.db'}?mode=ro", uri=True, timeout=10)) as journal:
        found = journal.execute("SELECT uid FROM claim WHERE boot_id = ?", (boot_id.read_text().strip(),))
        return {uid for (uid,) in found}


def test_cleanup_refuses_while_pods_run_and_removes_everything_then(
    own_host: Host, forms: Forms, tmp_path: Path
) -> None:
    assert run(own_host, "state", tmp_path, "--hardware")[0] == 0
    status, text = run(own_host, "cleanup", tmp_path)
    assert (status, "claims are prepared" in text, "a node process runs" in text) == (2, True, True)
    forms.delete(*PODS)
    wait(own_host.hardware.traces, GONE_S)
    own_host.process.end()
    own_host.mps.end()
    try:
        status, text = run(own_host, "cleanup", tmp_path)
        assert (status, "problem" in text) == (0, False), text
        assert not STATE_DIR.exists()
        assert not list(CDI_DIR.glob("k8s.gpu.nvidia.com-*"))
        assert not list((KUBELET_ROOT / "plugins_registry").glob("gpu.nvidia.com*"))
        assert not Path("/run/gpu.nvidia.com-mps").exists()
    finally:
        own_host.restart()
        own_host.mps.start()
    forms.run("next", whole())
    forms.sees("next")

"""A node process and MPS host on this host, with the simulated GPUs and policies that a test requires.

Changing GPUs restarts the node process; policies are files in its folder and change while it runs.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.node.policy.folder import read_folder
from dra_driver.node.policy.policy_set import read_set
from dra_driver.node.policy.resolve import resolve
from dra_driver.node.slices import build_devices, features
from dra_driver.node.slices.api import RestSlicesApi
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import DRIVER, RealCluster, wait
from tests.e2e.hardware import Hardware
from tests.e2e.node import CDI_DIR, KUBELET_ROOT, STATE_DIR
from tests.fakes.dra_objects import wire
from tests.fakes.node_process import MpsHostProcess, NodeProcess
from tests.fakes.simulated_gpus import SimulatedBackend

# H100 first: the policies of the examples are about GPU 0.
GPUS = "2xh100-sxm5-80gb,2xa100-sxm4-40gb"
REGISTERED = "registered with the kubelet"
MPS_READY = "MPS host started"
START_S = 30.0
POLL_INTERVAL_S = "1"


class Host:
    """The processes on this host for ``node``. Not thread-safe; `start` and `stop` once."""

    def __init__(self, cluster: RealCluster, folder: Path, node: str, kubeconfig: str) -> None:
        self._cluster, self._node = cluster, node
        self.policies = folder / "policies"
        for path in (self.policies, folder / "node", folder / "mps"):
            path.mkdir()
        self.process = NodeProcess(
            folder / "node",
            environ={"KUBECONFIG": kubeconfig},
            node_name=node,
            simulate=GPUS,
            kubelet_registrar_dir=str(KUBELET_ROOT / "plugins_registry"),
            kubelet_plugins_dir=str(STATE_DIR.parent),
            cdi_dir=str(CDI_DIR),
            policy_dir=str(self.policies),
            poll_interval=POLL_INTERVAL_S,
        )
        self.mps = MpsHostProcess(folder / "mps", STATE_DIR.parent, DRIVER)

    @property
    def hardware(self) -> Hardware:
        return Hardware(spec=str(self.process.flags["simulate"]), node=self._node, state=STATE_DIR)

    def start(self) -> None:
        self.restart()
        self.mps.start()
        self.mps.wait_for(lambda: MPS_READY in self.mps.text)

    def stop(self) -> None:
        try:
            for process in (self.process, self.mps):
                if process.lives:
                    process.end()
        finally:
            self.process.kill()
            self.mps.kill()

    def restart(self) -> None:
        before = self.process.text.count(REGISTERED) if self.process.log.exists() else 0
        self.process.start()
        self.process.wait_for(lambda: self.process.text.count(REGISTERED) > before, START_S)

    def provide(self, requirements: Requirements) -> None:
        """Wait until slices offer the required GPUs under their policies, and none is in use. Skips if this host
        cannot."""
        if len(requirements.nodes) > 1:
            pytest.skip("it needs several nodes with different GPUs, and this host is one")
        spec = requirements.nodes[0][1] if requirements.nodes else GPUS
        self._put_policies(requirements.policies)
        if spec != self.process.flags["simulate"] or not self.process.lives:
            if self.process.lives:
                self.process.end()
            self.process.flags["simulate"] = spec
            self.forget_gpus()
            self.restart()
        wait(self._differs, START_S)

    @staticmethod
    def forget_gpus() -> None:
        """The next start finds another machine, not one that has lost its GPUs: those would stay published."""
        (STATE_DIR / "last-known-gpus.json").unlink(missing_ok=True)

    def put_policy(self, name: str, text: str) -> None:
        path = self.policies / f".{name}.new"
        path.write_text(text)
        path.replace(self.policies / name)

    def _put_policies(self, paths: tuple[Path, ...]) -> None:
        for path in self.policies.iterdir():
            if path.name not in {wanted.name for wanted in paths}:
                path.unlink()
        for path in paths:
            self.put_policy(path.name, path.read_text())

    def _differs(self) -> str | None:
        wanted = self._wanted()
        found = {_essence(device) for device in self._cluster.devices()}
        if found == wanted:
            return None
        return f"slices have {sorted(found - wanted)}, and have not {sorted(wanted - found)}; {self.process.text}"

    def _wanted(self) -> set[tuple[str, ...]]:
        snapshot = SimulatedBackend.from_spec(str(self.process.flags["simulate"]), self._node).snapshot()
        policies = read_set(read_folder(self.policies)).policies
        kept = features.probe(RestSlicesApi(self._cluster.rest, DRIVER, self._node), DRIVER, self._node)
        terms = resolve(policies, snapshot, (), self._node)
        return {_essence(wire(device)) for device in build_devices(snapshot, terms, kept).devices}


def _essence(device: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of slices that depend on GPUs and policies, in the API server's spelling."""
    attributes = device["attributes"]
    texts = [str(attributes.get(name, {}).get("string")) for name in ("productName", "uuid", "sharingStrategy")]
    return (device["name"], *texts, *sorted(device.get("capacity") or ()))

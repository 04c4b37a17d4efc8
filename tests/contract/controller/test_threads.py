"""docs/threads.md against the threads of a started controller."""

from pathlib import Path

from dra_driver.sim.apiserver.kinds import NAMESPACES
from dra_driver.sim.apiserver.server import ApiServer
from tests.contract.node.process.test_threads import documented, started, undocumented
from tests.fakes.node_process import DriverProcess


def test_every_thread_of_a_controller_is_documented(tmp_path: Path) -> None:
    api = ApiServer()
    api.start()
    api.store.create(NAMESPACES, {"metadata": {"name": "dra-driver"}})
    flags: dict[str, str | None] = {
        "kubeconfig": str(api.kubeconfig(tmp_path / "kubeconfig")),
        "http_addr": "127.0.0.1:0",
        "evict_extended_resource_pods": "true",
        "evict_over_grant": "true",
        "capacity_interval": "3600",
    }
    process = DriverProcess("controller", tmp_path, flags)
    rows = documented("Controller")
    with started(process.command(), process.environ) as child:
        names = child.names()
    api.stop()
    assert undocumented(names, rows) == []
    assert rows.keys() - {name.replace("-", r"\-") for name in names} == {r"http\-request"}

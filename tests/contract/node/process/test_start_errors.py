"""A node process that cannot start: exit status 2, a sentence that names the cause, and nothing published."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.kube.rest import RestClient
from tests.contract.node.process.processes import DRIVER, POOL, Node, generations
from tests.fakes.node_process import NodeProcess


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"node_name": None}, "--node-name (NODE_NAME) is missing"),
        ({"node_name": "Not_A_Name"}, "--node-name (NODE_NAME): 'Not_A_Name': expected a DNS subdomain"),
        ({"http_addr": "everywhere"}, "--http-addr (HTTP_ADDR): 'everywhere': expected HOST:PORT"),
        (
            {"kubelet_registrar_dir": "/nowhere/plugins_registry"},
            "registry /nowhere/plugins_registry is not a directory",
        ),
        ({"simulate": None, "driver_root": "/nowhere/driver"}, "driver root /nowhere/driver is not a directory"),
        ({"cdi_dir": "/proc/version"}, "cannot create the CDI directory /proc/version"),
        ({"cdi_dir": "/proc/sys"}, "the CDI directory /proc/sys is not writable"),
        ({"kubeconfig": "/nowhere/kubeconfig"}, "kubeconfig /nowhere/kubeconfig does not exist"),
        ({"simulate": "3xnonsense"}, "nonsense"),
        ({"kubelet_plugins_dir": "/tmp/" + "p" * 100}, "unix socket's may have 107"),
    ],
)
def test_wrong_configuration_ends_with_status_2_and_a_sentence(
    node: Callable[..., Node], flags: dict[str, str | None], sentence: str
) -> None:
    status, text = node(**flags).refused()
    assert status == 2, text
    last = text.splitlines()[-1]
    assert last.startswith("dra-driver: ")
    assert sentence in last
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("plugins/gpu.nvidia.com/dra.sock", "dra.sock: there is a directory"),
        ("reg/gpu.nvidia.com-reg.sock", "-reg.sock: there is a directory"),
        ("plugins/gpu.nvidia.com/state.db", "cannot start without a journal"),
        ("plugins/gpu.nvidia.com/simulated-root/usr/bin/nvidia-smi", "cannot start without a driver root"),
    ],
)
def test_process_that_cannot_start_has_published_nothing(
    rest: RestClient, node: Callable[..., Node], path: str, sentence: str
) -> None:
    """In a crash loop, published devices would attract pods that no process could serve."""
    process = node()
    (process.folder / path).mkdir(parents=True)
    status, text = process.refused()
    assert (status, "Traceback" in text) == (2, False), text
    assert sentence in text.splitlines()[-1]
    assert (generations(rest), process.cdi_files) == ([], [])


def test_second_process_of_one_pod_has_published_nothing(rest: RestClient, node: Callable[..., Node]) -> None:
    """Two processes with one --pod-uid share the lock; the socket detects the second before it changes anything."""
    first = node(pod_uid="aaaa").start()
    first.wait_for(lambda: len(generations(rest)) == POOL)
    smi = first.folder / "plugins" / DRIVER / "simulated-root" / "usr" / "bin" / "nvidia-smi"
    before = generations(rest), smi.read_text()
    status, text = node(pod_uid="aaaa", simulate="1xl4-24gb").refused()
    assert (status, "another process already serves" in text.splitlines()[-1]) == (2, True), text
    assert (generations(rest), smi.read_text()) == before, "the first one's containers would see other GPUs"


def test_settings_come_from_the_environment_too(folder: Path, kubeconfig: str) -> None:
    process = NodeProcess(folder, environ={"NODE_NAME": "Wrong", "KUBECONFIG": kubeconfig}, node_name=None)
    status, text = process.refused()
    assert (status, "'Wrong'" in text) == (2, True)


def test_port_in_use_is_a_configuration_error(node: Callable[..., Node]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, text = node(http_addr=f"127.0.0.1:{taken.getsockname()[1]}").refused()
    assert status == 2
    assert "choose another --http-addr" in text

"""Sockets as the kubelet finds them: when they appear, how they are replaced, which are foreign."""

import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.unix_socket import is_served
from dra_driver.node.process.endpoints import Registration
from dra_driver.node.process.server import RETIREMENT_S, UnixServer
from dra_driver.node.process.sockets import MAX_PATH_BYTES, SocketPaths, remove_dead
from tests.contract.node.process.conftest import DRIVER, Plugin
from tests.fakes.kubelet import DraClient, dial, register
from tests.harness.raising import fails

UID = "b1c7e0f2-5d0a-4c61-9f7e-0f6f0a8c1d2e"


def test_dra_socket_answers_at_the_moment_the_registration_socket_appears(folder: Path) -> None:
    """The kubelet dials the DRA socket right after GetInfo, without a second try for the pod that waits."""
    plugin = Plugin(folder)
    answers: list[bool] = []

    def kubelet() -> None:
        deadline = time.monotonic() + 10
        while not plugin.paths.registration.exists() and time.monotonic() < deadline:
            pass
        info = register(plugin.paths.registration)
        with dial(Path(info.endpoint)) as channel:
            answers.append(bool(DraClient(channel).prepare(UID).claims[UID].devices))

    thread = threading.Thread(target=kubelet)
    thread.start()
    plugin.endpoints.start()
    thread.join(20)
    plugin.stop()
    assert answers == [True]


def test_registration_socket_that_was_deleted_comes_back(plugin: Plugin) -> None:
    """A cleaned registry must not leave the node without its driver until a person restarts the pod."""
    register(plugin.paths.registration)
    assert plugin.registration.problem is None
    plugin.paths.registration.unlink()
    plugin.endpoints.check()
    assert "not registered" in str(plugin.registration.problem)
    assert register(plugin.paths.registration).name == DRIVER
    assert plugin.registration.problem is None
    plugin.paths.registration.unlink()
    plugin.paths.registration.parent.rmdir()
    plugin.endpoints.check()
    assert register(plugin.paths.registration).name == DRIVER, "its directory, too"


def test_dra_socket_that_was_deleted_comes_back_for_a_connected_kubelet(plugin: Plugin) -> None:
    registered = plugin.paths.registration.lstat().st_ino
    with dial(plugin.paths.dra) as channel:
        client = DraClient(channel)
        assert client.prepare(UID).claims[UID].devices
        before = plugin.endpoints._dra
        plugin.paths.dra.unlink()
        plugin.endpoints.check()
        assert plugin.endpoints._dra is not before
        # Asking a server again that is stopping returns the event of its end: all of its connections have gone.
        assert before._server.stop(RETIREMENT_S).wait(10)
        assert repeated(lambda: client.prepare(UID)).claims[UID].devices
    assert plugin.paths.registration.lstat().st_ino == registered


def test_a_call_in_progress_is_answered_although_its_socket_was_deleted(plugin: Plugin) -> None:
    with held_up(plugin) as (future, release):
        plugin.paths.dra.unlink()
        plugin.endpoints.check()
        release.set()
        assert future.result(10).claims[UID].devices


def test_sockets_in_place_are_not_replaced(plugin: Plugin) -> None:
    """The check runs every second; it must not cut the kubelet's connection."""
    before = [path.lstat().st_ino for path in (plugin.paths.dra, plugin.paths.registration)]
    for _ in range(3):
        plugin.endpoints.check()
    assert [path.lstat().st_ino for path in (plugin.paths.dra, plugin.paths.registration)] == before
    assert plugin.endpoints.problem is None


def test_socket_of_another_process_is_reported_and_left_alone(plugin: Plugin) -> None:
    """Two drivers that replace each other's socket in turn would be worse than one that is not ready."""
    plugin.paths.dra.unlink()
    with socket.socket(socket.AF_UNIX) as thief:
        thief.bind(str(plugin.paths.dra))
        thief.listen()
        plugin.endpoints.check()
        assert str(plugin.paths.dra) in str(plugin.endpoints.problem)
        assert is_served(plugin.paths.dra)
        plugin.stop()
        assert plugin.paths.dra.exists(), "stopping must not remove a socket that is not ours"


def test_stopping_leaves_a_successors_socket(folder: Path) -> None:
    """gRPC itself would remove any file at the path that it bound."""
    first = Plugin(folder)
    first.endpoints.start()
    for path in (first.paths.dra, first.paths.registration):
        path.unlink()
    second = Plugin(folder)
    second.endpoints.start()
    first.stop()
    assert register(second.paths.registration).name == DRIVER
    second.stop()


def test_stale_sockets_of_a_killed_process_are_replaced(folder: Path) -> None:
    """After kill -9 the files still exist, and no process listens."""
    plugin = Plugin(folder)
    for path in (plugin.paths.dra, plugin.paths.registration):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    plugin.endpoints.start()
    assert register(plugin.paths.registration).name == DRIVER
    plugin.stop()


def test_regular_file_in_a_sockets_place_is_an_error_that_names_it(folder: Path) -> None:
    plugin = Plugin(folder)
    plugin.paths.registration.write_text("notes")
    with fails(ConfigurationError, "PathOccupied", match=r"gpu\.nvidia\.com-reg\.sock"):
        plugin.endpoints.start()
    assert plugin.paths.registration.read_text() == "notes"
    assert not plugin.paths.dra.exists()


def test_sockets_work_at_the_longest_path_the_kernel_takes(folder: Path) -> None:
    registrar_dir = folder / ("d" * (MAX_PATH_BYTES - len(str(folder)) - len("/" + "/dra-reg.sock") - 23))
    registrar_dir.mkdir()
    paths = SocketPaths.choose(driver=DRIVER, registrar_dir=registrar_dir, plugin_dir=registrar_dir, pod_uid=UID)
    assert len(str(paths.registration)) == MAX_PATH_BYTES
    handler = Registration(driver=DRIVER, endpoint=paths.dra).handler()
    server = UnixServer(paths.registration, [handler], threads=1, name="test")
    server.start()
    assert register(paths.registration).name == DRIVER
    server.stop(0)


def test_dead_sockets_of_other_pods_are_cleared_and_living_ones_kept(plugin: Plugin) -> None:
    """The kubelet would dial a dead registration socket for ever, with an error line each time."""
    dead = plugin.paths.registration.with_name(f"{DRIVER}-{UID}-reg.sock")
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(dead))
    other = plugin.paths.registration.with_name(f"{DRIVER}-notes-reg.sock")
    other.write_text("no socket")
    assert remove_dead(dead.parent, f"{DRIVER}-*reg.sock") == [dead]
    assert other.exists()
    assert is_served(plugin.paths.registration)


def test_sockets_stay_reachable_for_a_kubelet_of_any_user(plugin: Plugin) -> None:
    """Who may connect is decided by the directories, as for every plugin; the sockets themselves are gRPC's 0755."""
    assert stat.S_IMODE(plugin.paths.dra.lstat().st_mode) == 0o755


def test_directory_that_vanished_is_an_error_with_advice(folder: Path) -> None:
    plugin = Plugin(folder)
    plugin.paths.dra.parent.rmdir()
    with pytest.raises(ConfigurationError, match="directory exists"):
        plugin.endpoints.start()


def test_registration_outlives_the_calls_in_progress(plugin: Plugin) -> None:
    """The kubelet drops its connection, calls included, when the registration socket goes: a prepare would be lost."""
    with held_up(plugin) as (future, release):
        stopper = threading.Thread(target=plugin.stop, args=(10.0,))
        stopper.start()
        deadline = time.monotonic() + 5
        while plugin.paths.dra.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not plugin.paths.dra.exists(), "new calls are refused at once"
        assert plugin.paths.registration.exists()
        release.set()
        assert future.result(5).claims[UID].devices
        stopper.join(5)
    assert not plugin.paths.registration.exists()


@contextmanager
def held_up(plugin: Plugin) -> Iterator[tuple[Any, threading.Event]]:
    entered, release = threading.Event(), threading.Event()

    def before(_: object) -> None:
        entered.set()
        release.wait(30)

    plugin.preparer.before = before
    with dial(plugin.paths.dra) as channel:
        client = DraClient(channel)
        request = client._messages.NodePrepareResourcesRequest(claims=[client.claim(UID)])
        future = client.prepare_method.future(request, timeout=30)
        assert entered.wait(5)
        yield future, release


def repeated(call: Callable[[], Any]) -> Any:
    """As a kubelet does: a call that met the goodbye of the old server is sent again. Raises after 10 s."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE):
                raise
            if time.monotonic() > deadline:
                raise

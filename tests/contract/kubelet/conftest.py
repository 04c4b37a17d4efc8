"""Real servers on real unix sockets, in a directory short enough for their paths."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.kubelet import service
from dra_driver.kubelet.endpoints import Endpoints
from dra_driver.kubelet.health_stream import HealthStreams
from dra_driver.kubelet.registration import Registration
from dra_driver.kubelet.sockets import SocketPaths
from tests.fakes.preparer import FakePreparer

DRIVER = "gpu.nvidia.com"


class Plugin:
    """Everything the kubelet can call, over a fake preparer."""

    def __init__(self, folder: Path, *, pod_uid: str | None = None) -> None:
        registrar_dir, plugin_dir = folder / "reg", folder / "plugins"
        registrar_dir.mkdir(exist_ok=True)
        plugin_dir.mkdir(exist_ok=True)
        self.paths = SocketPaths.choose(
            driver=DRIVER, registrar_dir=registrar_dir, plugin_dir=plugin_dir, pod_uid=pod_uid
        )
        self.preparer = FakePreparer()
        self.streams = HealthStreams()
        self.registration = Registration(driver=DRIVER, endpoint=self.paths.dra)
        self.prepares = service.prepare_threads()
        handlers = [*service.handlers(self.preparer, DRIVER, self.prepares), *self.streams.handlers()]
        self.endpoints = Endpoints(self.paths, self.registration, handlers)

    def stop(self, grace_s: float = 1.0) -> None:
        self.streams.stop()
        self.endpoints.stop(grace_s)
        self.prepares.shutdown(wait=False, cancel_futures=True)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dra-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def plugin(folder: Path) -> Iterator[Plugin]:
    made = Plugin(folder)
    made.endpoints.start()
    yield made
    made.stop()

"""The page over a small cluster, without threads and sockets."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dra_driver.core.model.gpu_node import GpuNodeStatus
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, GpuMemory, UseReport
from dra_driver.kubectl.web.access_control import Keys
from dra_driver.kubectl.web.reading import BackgroundResults, LiveSource, Periodic, read_from, same_cluster
from dra_driver.kubectl.web.use_history import UseHistory, UseSample
from tests.unit.kubectl.web.objects import seen, small_state

if TYPE_CHECKING:
    from starlette.testclient import TestClient

HOST = "127.0.0.1:8090"


class Site:
    """A page whose readers are driven by the test, and a browser that has opened it."""

    def __init__(self, reader: type[Periodic[Any]] = Periodic) -> None:
        from dra_driver.kubectl.web.app import PageSources, application

        self.state = small_state()
        self.age = self.use_age = timedelta()
        self.asked: list[tuple[int, Mapping[str, str]]] = []
        self.past: list[UseSample] | Exception = []
        self.told: dict[str, GpuNodeStatus] = {}
        self.uses: list[ClaimDeviceUse] = []
        self.memory: list[GpuMemory] = []
        self.gaps: list[str] = []
        self.failure: Exception | None = None
        self.source: LiveSource | None = None
        self.use_failure: Exception | None = None
        self.keys = Keys()
        self.code = self.keys.code
        history = UseHistory(self._report)
        self.sources = PageSources(
            cluster=reader("cluster", self._read, 1.0, same=same_cluster, now=lambda: datetime.now(UTC) - self.age),
            background_results=BackgroundResults(),
            about="test",
            use=Periodic("use", history.read, 1.0, now=lambda: datetime.now(UTC) - self.use_age),
            past=self._past,
        )
        self.app = application(self.sources, self.keys, (HOST,))
        self.base = f"/{self.keys.folder}"

    def _report(self) -> UseReport:
        if self.use_failure:
            raise self.use_failure
        return UseReport(source="test", window_s=60, uses=list(self.uses), gpus=list(self.memory), gaps=self.gaps)

    def _past(self, window_s: int, where: Mapping[str, str]) -> list[UseSample]:
        self.asked.append((window_s, where))
        if isinstance(self.past, Exception):
            raise self.past
        return self.past

    def _read(self) -> Any:
        if self.failure:
            raise self.failure
        return read_from(self.source) if self.source else seen(self.state, **self.told)

    def browser(self) -> "TestClient":
        from starlette.testclient import TestClient

        return TestClient(self.app, base_url=f"http://{HOST}", follow_redirects=False)

    def opened(self) -> "TestClient":
        found = self.browser()
        assert found.get(f"{self.base}/open?code={self.code}").status_code == 200
        return found

    def read(self, state: ClusterState | None = None, **told: GpuNodeStatus) -> None:
        """Reads this state as the threads would."""
        self.state, self.told = state or self.state, told
        self.sources.cluster.once()
        assert self.sources.use is not None
        self.sources.use.once()
        while self.sources.background_results.compute_one():
            pass


@pytest.fixture
def site() -> Site:
    for package in ("jinja2", "httpx2"):
        pytest.importorskip(package, reason=f"{package} is in requirements/dev.txt and not installed: run make")
    return Site()


@pytest.fixture
def browser(site: Site) -> "Iterator[TestClient]":
    with site.opened() as found:
        yield found

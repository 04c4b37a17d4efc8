"""A kubelet that plays the pods of diagnoses, and API servers that lose answers."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from dra_driver.kube.rest import RestClient
from dra_driver.sim.apiserver.server import ApiServer

DEPLOYED: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parents[2] / "deploy/base/daemonset.yaml").read_text(encoding="utf-8")
)
NAMESPACE = "dra-driver"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
Statuses = list[tuple[dict[str, Any], str]]


class Kubelet:
    def __init__(self, api: ApiServer, client: RestClient, script: Statuses) -> None:
        self._api, self._client, self._script = api, client, script
        self._stop = threading.Event()
        self.pods: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator["Kubelet"]:
        thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        thread.start()
        yield self
        self._stop.set()
        thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for pod in self._client.list(PODS)["items"]:
                self.pods.append(pod)
                self._play(pod)
                return

    def _play(self, pod: dict[str, Any]) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        for status, text in self._script:
            if text:
                self._api.store.logs.append(NAMESPACE, name, container, text)
            with contextlib.suppress(Exception):  # deleted meanwhile
                self._client.merge_patch(f"{PODS}/{name}/status", {"status": of_container(status, container)})
            if self._stop.wait(1.2):
                return


def state(phase: str, **state: Any) -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"state": state}]}


def of_container(status: dict[str, Any], name: str) -> dict[str, Any]:
    return {**status, "containerStatuses": [{"name": name, **each} for each in status["containerStatuses"]]}


class Refuses:
    """The API server, which answers creating a pod with an error; ``creates``: it does so after creating it."""

    def __init__(self, client: RestClient, error: BaseException, *, creates: bool = False) -> None:
        self._client, self._error, self._creates = client, error, creates
        self.get, self.get_text, self.delete, self.list = client.get, client.get_text, client.delete, client.list

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if self._creates:
            self._client.create(path, body)
        raise self._error

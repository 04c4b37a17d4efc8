"""An API server, a scheduler and a kubelet for single tries: what happens to the pod is a list of its states."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver.core.errors import KubernetesApiError, NotFoundError
from dra_driver.diagnose.smoke.attempt import Attempt, Tools, TryTask
from dra_driver.diagnose.smoke.objects import PodSettings
from dra_driver.diagnose.smoke.planning import Fit
from dra_driver.diagnose.smoke.report import TryKind, TryResult, claim_spec
from tests.fakes import dra_objects

NODE: Final = "gpu-a"
DRIVER: Final = "gpu.nvidia.com"
POOL: Final = f"{NODE}/{DRIVER}"
UUID: Final = "GPU-00000000-0000-0000-0000-000000000001"
LOG: Final = f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {UUID})\n"
NAME: Final = "dra-smoke-0-1"
WHOLE: Final = TryKind("gpu")
Wire = dict[str, Any]


def device(name: str = "gpu-0", **attributes: str) -> Wire:
    return dra_objects.gpu(name, **{"uuid": UUID, **attributes})


def resource_slice(*devices: Wire, node: str = NODE, generation: int = 1) -> Wire:
    return dra_objects.resource_slice(node, *devices, generation=generation)


def result(name: str = "gpu-0") -> Wire:
    return {"request": "device", "driver": DRIVER, "pool": POOL, "device": name}


def waiting(reason: str = "ContainerCreating", message: str = "") -> Wire:
    return _pod("Pending", {"waiting": {"reason": reason, "message": message}})


def ended(code: int = 0, **more: str) -> Wire:
    return _pod("Failed" if code else "Succeeded", {"terminated": {"exitCode": code, **more}})


def unplaced(message: str = "0/1 nodes are available") -> Wire:
    pod = _pod("Pending", {})
    pod["spec"] = {}
    pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}
    return pod


def _pod(phase: str, state: Wire) -> Wire:
    statuses = [{"name": "nvidia-smi", "state": state}]
    return {
        "metadata": {"name": f"{NAME}-x", "uid": "pod-uid"},
        "spec": {"nodeName": NODE},
        "status": {"phase": phase, "containerStatuses": statuses},
    }


class FakeSmokeApi:
    """A ``smoke.attempt.SmokeApi``. Each look at the pod takes the next of ``states``; the last one stays."""

    def __init__(self, *states: Wire | KubernetesApiError, log: str = LOG) -> None:
        self.states: list[Wire | KubernetesApiError] = list(states)
        self.log = log
        self.events: list[Wire] = []
        self.refused: dict[str, KubernetesApiError] = {}  # by verb and last word of the path
        self.made: dict[str, Wire] = {}  # by path
        self.deleted: list[str] = []
        self.forgets = False  # its Jobs are deleted by another client
        self.keeps_pod = False  # deleting the Job does not end its pod

    def get(self, path: str) -> Wire:
        if path not in self.made or self.forgets:
            raise NotFoundError(f"GET {path}", status=404)
        return self.made[path]

    def get_text(self, path: str) -> str:
        assert path.endswith("/log")
        return self.log

    def list(self, path: str, query: Mapping[str, str] | None = None) -> Wire:
        if path.endswith("/events"):
            return {"items": self.events}
        assert query == {"labelSelector": f"batch.kubernetes.io/job-name={NAME}"}
        if not any("/jobs/" in made for made in self.made) and not self.keeps_pod:
            return {"items": []}
        if not self.states:
            return {"items": []}
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, KubernetesApiError):
            raise state
        return {"items": [state]}

    def create(self, path: str, body: Mapping[str, Any]) -> Wire:
        if error := self.refused.get(f"create {path.rpartition('/')[2]}"):
            raise error
        made = {**body, "metadata": {**body["metadata"], "uid": f"uid-{len(self.made)}"}}
        self.made[f"{path}/{body['metadata']['name']}"] = made
        return made

    def delete(self, path: str, *, propagation: str | None = None) -> None:
        if error := self.refused.get(f"delete {path.split('/')[-2]}"):
            raise error
        if path not in self.made:
            raise NotFoundError(f"DELETE {path}", status=404)
        assert propagation == "Background", "a Job's pods would be orphaned"
        self.deleted.append(path)
        del self.made[path]


class StopAfter(threading.Event):
    """Set after so many waits, none of which takes time; with the clock that waits move."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.now, self._left = 0.0, waits

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, timeout: float | None = None) -> bool:
        self.sleep(timeout or 0.0)
        self._left -= 1
        if self._left < 0:
            self.set()
        return self.is_set()


def tried(
    api: FakeSmokeApi,
    *,
    allocated: Sequence[Wire] = (result(),),
    fit: Fit | None = None,
    waits: int = 10_000,
    slices: Sequence[Wire] = (resource_slice(device()),),
) -> tuple[TryResult, Attempt]:
    stopping = StopAfter(waits)
    task = TryTask(name=NAME, node=NODE, kind=WHOLE, spec=claim_spec(WHOLE, device(), DRIVER), slices=slices)
    tools = Tools(
        api=api,
        run="0",
        settings=PodSettings(namespace="dra-driver", image="example.com/driver:1"),
        allocated=lambda _name: allocated,
        fit=lambda _task: fit or Fit(fits=False, answer="explain's answer"),
        stopping=stopping,
        clock=lambda: stopping.now,
        sleep=stopping.sleep,
    )
    attempt = Attempt(tools, task)
    return attempt.result(), attempt

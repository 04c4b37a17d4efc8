"""Answers that take longer than a page may, and the thread that tries what was pasted."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.state import ClusterState, with_objects
from dra_driver.kube.state_file import flat, objects_of, read_documents
from dra_driver.kubectl.capacity import CapacityReport, Options, survey
from dra_driver.kubectl.explain import (
    Explanation,
    explain,
    explain_pods,
    pod_subject,
    pods_in,
    scheduler_for,
    subject_of_claim,
    with_defaults,
)

T = TypeVar("T")


def in_thread(compute: Callable[[], T], done: Callable[[], object]) -> "asyncio.Future[T]":
    """Computes in a thread that does not keep the process from ending; ``done`` is called there at the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        if not future.done():
            settle()

    def run() -> None:
        try:
            settle = partial(future.set_result, compute())
        except Exception as error:  # noqa: BLE001  raised where the answer is awaited
            settle = partial(future.set_exception, error)
        finally:
            done()
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, settle)

    threading.Thread(target=run, name="page-what-if", daemon=True).start()
    return future


def survey_of(state: ClusterState) -> CapacityReport:
    state = with_defaults(state)
    scheduler = scheduler_for(state)
    return survey(state, Options(features=scheduler.features, quirks=scheduler.quirks))


def explain_pod(state: ClusterState, namespace: str, name: str) -> Explanation:
    scheduler = scheduler_for(state)
    return explain(state, pod_subject(state, namespace, name), scheduler=scheduler)


MAX_BYTES: Final = 64 << 10
MAX_PODS: Final = 8
MAX_CLAIMS: Final = 8
_WHERE: Final = Path("the pasted text")

EXAMPLE: Final = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: trial
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu.nvidia.com
        selectors:
        - cel:
            expression: device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0
"""


def tried(state: ClusterState, text: str, namespace: str = "default") -> list[Explanation]:
    """An explanation for each pod in the manifests; without pods, for each claim. Raises ConfigurationError."""
    if len(text.encode()) > MAX_BYTES:
        raise ConfigurationError(f"more than {MAX_BYTES >> 10} KiB: paste fewer objects")
    documents = list(flat(list(read_documents(_WHERE, text)), str(_WHERE)))
    others = [item for item in documents if item.get("kind") != "Pod"]
    objects = objects_of(others, str(_WHERE), namespace)
    pods = pods_in(documents, namespace, str(_WHERE))
    claims = [item for item in objects if item["kind"] == "ResourceClaim"]
    if not pods and not claims:
        raise ConfigurationError("there is no Pod, no workload that creates pods, and no ResourceClaim in it")
    if len(pods) > MAX_PODS or len(claims) > MAX_CLAIMS:
        raise ConfigurationError(
            f"{len(pods)} pods and {len(claims)} claims: at most {MAX_PODS} of each are tried here"
        )
    state = with_objects(state, objects)
    scheduler = scheduler_for(state)
    if pods:
        return explain_pods(state, pods, scheduler=scheduler)
    return [explain(state, subject_of_claim(item), scheduler=scheduler) for item in claims]

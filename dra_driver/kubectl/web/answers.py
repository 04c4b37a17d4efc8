"""Answers that take longer than a page may, and the thread that tries what was pasted."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity import CapacityReport, Options, survey
from dra_driver.kubectl.explain import Explanation, explain, gates_of, pod_subject, scheduler_of, with_defaults


def in_thread(compute: Callable[[], Any], done: Callable[[], object]) -> "asyncio.Future[Any]":
    """Computes in a thread that does not keep the process from ending; ``done`` is called there at the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def tell(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.cancelled() and not future.done():
            set_it(value)

    def run() -> None:
        try:
            value, set_it = compute(), future.set_result
        except Exception as error:  # noqa: BLE001  raised where the answer is awaited
            value, set_it = error, future.set_exception
        finally:
            done()
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, set_it, value)

    threading.Thread(target=run, name="page-what-if", daemon=True).start()
    return future


def survey_of(state: ClusterState) -> CapacityReport:
    """What is free, fragmented and stranded. Raises DraError."""
    state = with_defaults(state)
    scheduler = scheduler_of(state.server_version, gates_of(""), state.slices)
    return survey(state, Options(features=scheduler.features, quirks=scheduler.quirks))


def explain_pod(state: ClusterState, namespace: str, name: str) -> Explanation:
    """Why a pod waits. Raises DraError."""
    scheduler = scheduler_of(state.server_version, gates_of(""), state.slices)
    return explain(state, pod_subject(state, namespace, name), scheduler=scheduler)

"""Reads what a support bundle has beside the facts: the logs of the driver's pods, bounded and redacted."""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from dra_driver.core.errors import InvalidObjectError, KubernetesApiError, NotFoundError
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.diagnose.doctor.redaction import redacted
from dra_driver.diagnose.doctor.wire import Wire, dicts, is_ready, name_of, namespace_of, number, text
from dra_driver.kube import paths

MOST_PODS: Final = 40
MOST_BYTES: Final = 512 * 1024
"""Of one log."""
_LINES: Final = 3000


class LogApi(Protocol):
    """The part of ``kube.rest.RestClient`` that is needed here."""

    def get_text(self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None) -> str: ...


def read_logs(api: LogApi, facts: ClusterFacts, *, within_s: float) -> tuple[dict[str, str], list[str]]:
    """Logs by ``namespace/pod/container``, and sentences about those that are left out.

    Pods that are not ready come first. Of a container that ended before, the log of that run is read as well.
    ``within_s`` bounds each request.
    """
    pods = sorted(
        facts.items_or_none(fact.DRIVER_PODS), key=lambda pod: (is_ready(pod), namespace_of(pod), name_of(pod))
    )
    left = [f"logs of {len(pods) - MOST_PODS} of {len(pods)} pods"] if len(pods) > MOST_PODS else []
    found: dict[str, str] = {}
    for pod in pods[:MOST_PODS]:
        for container in dicts(pod, "status", "containerStatuses"):
            for previous in (False, True) if number(container, "restartCount") else (False,):
                _add(found, left, api, pod, text(container, "name"), previous=previous, within_s=within_s)
    return found, left


def _add(
    found: dict[str, str],
    left: list[str],
    api: LogApi,
    pod: Wire,
    container: str,
    *,
    previous: bool,
    within_s: float,
) -> None:
    name = f"{namespace_of(pod)}/{name_of(pod)}/{container}{'-previous' if previous else ''}"
    query: dict[str, Any] = {"container": container, "tailLines": str(_LINES), "limitBytes": str(MOST_BYTES)}
    if previous:
        query["previous"] = "true"
    try:
        log = api.get_text(f"{paths.pod(namespace_of(pod), name_of(pod))}/log", query, within_s=within_s)
    except (InvalidObjectError, NotFoundError):
        return  # the container has not begun, or the run before is gone
    except KubernetesApiError as error:
        left.append(f"the log of {name}: {error}")
        return
    found[name] = redacted(log, MOST_BYTES)

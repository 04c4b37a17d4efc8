"""Finds and deletes what earlier smoke tests left in a namespace.

Kubernetes deletes a killed run's objects itself (`objects`). This is for what it has not deleted yet, and for clusters
whose controllers are in trouble.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from dra_driver.core.errors import NotFoundError
from dra_driver.diagnose.smoke.attempt import SmokeApi
from dra_driver.diagnose.smoke.objects import RUN_LABEL, TTL_S
from dra_driver.kube import paths

Wire = Mapping[str, Any]

_SPARE_S: Final = 60


def of_namespace(api: SmokeApi, namespace: str, run: str = "") -> Iterator[tuple[str, Wire]]:
    """Path and object of each Job and claim of smoke tests, or of one run."""
    query = {"labelSelector": f"{RUN_LABEL}={run}" if run else RUN_LABEL}
    for path in (paths.jobs(namespace), paths.resource_claims(namespace)):
        for item in api.list(path, query)["items"]:
            yield f"{path}/{item['metadata']['name']}", item


def is_outdated(item: Wire, now: datetime) -> bool:
    """Whether a Job's run is over: it has ended, or lives longer than its deadline allows."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    if any(one.get("type") in {"Complete", "Failed"} and one.get("status") == "True" for one in conditions):
        return True
    deadline = (item.get("spec") or {}).get("activeDeadlineSeconds") or 0
    created = datetime.fromisoformat(str(item["metadata"]["creationTimestamp"]).replace("Z", "+00:00"))
    return (now - created.astimezone(UTC)).total_seconds() > deadline + TTL_S + _SPARE_S


def outdated(found: Iterable[tuple[str, Wire]], now: datetime) -> list[tuple[str, Wire]]:
    """The Jobs of runs that are over. Their claims go with them."""
    return [(path, item) for path, item in found if "/jobs/" in path and is_outdated(item, now)]


def delete(api: SmokeApi, found: Iterable[tuple[str, Wire]]) -> list[str]:
    """Deletes them with all that they own, and returns their names. Raises KubernetesApiError."""
    names = []
    for path, item in found:
        with suppress(NotFoundError):
            api.delete(path, propagation="Background")
        names.append(f"{'job' if '/jobs/' in path else 'resourceclaim'} {item['metadata']['name']}")
    return names

"""Asks the usage exporters of all nodes through the API server (``pods/proxy``), with the user's own rights."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from dra_driver.core.errors import ApiUnreachableError, ConfigurationError, ForbiddenError, KubernetesApiError
from dra_driver.core.text import printable
from dra_driver.kube import paths
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, GpuMemory, UseReport, decode, decode_gpus

SELECTOR: Final = "app.kubernetes.io/component=exporter"
PORT: Final = 8082
ALL_S: Final = 120.0
"""All nodes together: 1,000 exporters that answer at once take about half of it."""
_GROUP: Final = 64
_MAX_GAPS: Final = 10


class ExporterApi(Protocol):
    """The part of ``rest.RestClient`` that is needed here."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...
    def get_all(
        self, paths: Sequence[str], *, within_s: float | None = None
    ) -> Sequence[dict[str, Any] | KubernetesApiError]: ...


def ask_exporters(api: ExporterApi, namespace: str, *, node: str = "") -> UseReport:
    """What the exporters of all nodes, or of one, know. Raises ConfigurationError where there are none, and
    ForbiddenError where the user may not ask any of them, ApiUnreachableError where none answers."""
    pods = [pod for pod in _pods(api, namespace) if node in ("", _node(pod))]
    if not pods:
        where = f" on node {node}" if node else ""
        raise ConfigurationError(
            f"no pod with the label {SELECTOR} in namespace {namespace}{where}: the exporter is off (the chart's "
            "exporter.enabled), or in another namespace (--driver-namespace); --prometheus asks what was recorded"
        )
    told = _Told()
    for at in range(0, len(pods), _GROUP):
        group = pods[at : at + _GROUP]
        answers = api.get_all([_path(namespace, pod) for pod in group], within_s=ALL_S)
        for pod, answer in zip(group, answers, strict=True):
            if isinstance(answer, ForbiddenError):
                raise answer
            told.add(pod, answer)
    if not told.windows:
        raise ApiUnreachableError(
            f"nothing is known: none of {len(pods)} exporters answers as expected; {told.gaps[0]}"
        )
    asked = f"{len(told.windows)} of {len(pods)} exporters"
    return UseReport(
        source=asked, window_s=min(told.windows), uses=told.uses, gaps=tuple(_few(told.gaps)), gpus=tuple(told.gpus)
    )


class _Told:
    """What the exporters have answered so far."""

    def __init__(self) -> None:
        self.uses: list[ClaimDeviceUse] = []
        self.gpus: list[GpuMemory] = []
        self.gaps: list[str] = []
        self.windows: list[float] = []

    def add(self, pod: Mapping[str, Any], answer: dict[str, Any] | KubernetesApiError) -> None:
        node = _node(pod)
        if isinstance(answer, KubernetesApiError):
            self.gaps.append(f"node {node}: its exporter does not answer: {answer}")
            return
        try:
            uses, window_s, unknown = decode(answer, node)
        except ValueError as error:
            self.gaps.append(f"node {node}: the answer of its exporter cannot be used: {error}")
            return
        self.uses += uses
        self.gpus += decode_gpus(answer, node)
        self.gaps += unknown
        self.windows.append(window_s)


def _pods(api: ExporterApi, namespace: str) -> list[Mapping[str, Any]]:
    items = api.list(paths.pods(namespace), {"labelSelector": SELECTOR})["items"]
    return [pod for pod in items if not (pod.get("metadata") or {}).get("deletionTimestamp")]


def _path(namespace: str, pod: Mapping[str, Any]) -> str:
    name = str(pod["metadata"]["name"])
    return f"{paths.pod(namespace, f'{name}:{PORT}')}/proxy/usage"


def _node(pod: Mapping[str, Any]) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _few(gaps: Sequence[str]) -> Iterator[str]:
    yield from (printable(gap) for gap in gaps[:_MAX_GAPS])
    if len(gaps) > _MAX_GAPS:
        yield f"and {len(gaps) - _MAX_GAPS} more"

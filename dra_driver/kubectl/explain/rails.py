"""Compare the rails of the GPUs of several pods. No constraint can make the devices of different claims match."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from msgspec.structs import replace

from dra_driver.core.text import listed
from dra_driver.kube.devices import attribute_of, newest_slices, pool_of, results_of
from dra_driver.kube.published import names
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.report import Explanation
from dra_driver.kubectl.explain.subject import Wire

Holder = tuple[str, str, str]  # kind (pod or claim), namespace and name


def with_rails(
    state: ClusterState, claims: Mapping[Holder, Callable[[], Sequence[Wire]]], reports: Sequence[Explanation]
) -> list[Explanation]:
    """Return the reports. If the ``claims`` of pods, by pod, have GPUs of different rails, the first gets a note.
    Claims are read only if a device has a rail: to find the claims of 4,000 pods takes a second."""
    if len(claims) < 2 or not reports:
        return list(reports)  # without reading each device of a large cluster
    published = {
        (*pool_of(item), device["name"]): rail
        for item in newest_slices(state.slices)
        for device in item["spec"].get("devices") or ()
        if isinstance(rail := attribute_of(device.get("attributes"), pool_of(item)[0], names.RAIL).get("int"), int)
    }
    found: dict[tuple[int, ...], list[str]] = {}
    several = len({namespace for _, namespace, _ in claims}) > 1
    for (kind, namespace, name), held in claims.items() if published else ():
        devices = [(one["driver"], one["pool"], one["device"]) for claim in held() for one in results_of(claim)]
        if rails := sorted({published[device] for device in devices if device in published}):
            shown = f"{'claim ' if kind == 'claim' else ''}{f'{namespace}/' if several else ''}{name}"
            found.setdefault(tuple(rails), []).append(shown)
    if len(found) < 2:
        return list(reports)
    each = [f"{listed(sorted(users))} on {_text(rails)}" for rails, users in sorted(found.items())]
    note = (
        f"pods on different rails: {'; '.join(each)}. DRA cannot match devices of different claims: if these pods"
        " communicate rail by rail, use one template for each rail (docs/topology.md)"
    )
    return [replace(reports[0], notes=(*reports[0].notes, note)), *reports[1:]]


def _text(rails: Sequence[int]) -> str:
    """Return ``rails 0-3, 6``."""
    runs = [[rail for _, rail in run] for _, run in groupby(enumerate(rails), lambda pair: pair[1] - pair[0])]
    shown = (f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rail{'s' if len(rails) > 1 else ''} {', '.join(shown)}"

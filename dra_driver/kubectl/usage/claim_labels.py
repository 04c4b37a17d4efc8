"""Labels of claims for sums by label: a claim's own, and where it has none, those of the pods that have it. Pure.

People label pods; a claim that Kubernetes makes of a template has the labels of the template's ``spec.metadata`` alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dra_driver.kube.devices import is_pod, users_of
from dra_driver.kubectl.usage.exporter_answer import text

Pairs = tuple[tuple[str, str], ...]
Labels = Mapping[tuple[str, str], Pairs]
"""Labels of the claims that exist, by namespace and name."""
_Wire = Mapping[str, Any]
_MAX_LABELS: Final = 64
WITHOUT: Final = "(no such label)"
GONE: Final = "(the claim is gone)"


def labels_of(metadata: _Wire) -> Pairs:
    """Labels of an object as pairs."""
    labels = metadata.get("labels")
    pairs = labels.items() if isinstance(labels, dict) else ()
    return tuple((text(name), text(value)) for name, value in pairs)[:_MAX_LABELS]


def value_in(labels: Pairs | None, name: str) -> str:
    """What a sum by the label is called. ``labels`` is None where the claim is gone."""
    return GONE if labels is None else dict(labels).get(name) or WITHOUT


def claim_labels(claims: Iterable[_Wire], pods: Iterable[_Wire]) -> dict[tuple[str, str], Pairs]:
    """The claim's own labels come first. A label of pods counts where all pods of the claim have it with one value;
    none does while one of them is not in ``pods``."""
    by_uid = {_metadata(pod).get("uid"): labels_of(_metadata(pod)) for pod in pods}
    found = {}
    for claim in claims:
        metadata = _metadata(claim)
        of_pods = _common([by_uid.get(user.get("uid")) for user in users_of(claim) if is_pod(user)])
        merged = {**dict(of_pods), **dict(labels_of(metadata))}
        found[text(metadata.get("namespace")) or "default", text(metadata.get("name"))] = tuple(merged.items())
    return found


def _common(labels: Sequence[Pairs | None]) -> Pairs:
    if not labels or None in labels:
        return ()
    first, *others = [dict(each or ()) for each in labels]
    return tuple((name, value) for name, value in first.items() if all(each.get(name) == value for each in others))


def _metadata(item: _Wire) -> _Wire:
    found = item.get("metadata")
    return found if isinstance(found, dict) else {}

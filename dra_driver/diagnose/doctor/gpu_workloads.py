"""Which waiting pods have to do with GPUs: those of a network driver's claims are no concern. Pure over facts."""

from collections.abc import Iterator, Mapping

from dra_driver.diagnose.doctor.check_classes import PARTITIONS, WHOLE, expressions, is_for
from dra_driver.diagnose.doctor.driver_view import driver_names
from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.diagnose.doctor.wire import Wire, dicts, mapping, name_of, namespace_of, text
from dra_driver.diagnose.doctor.workload_view import (
    claim_names,
    classes_in,
    extended_resources,
    key_of,
    template_names,
    waiting_pods,
)


def concerns(facts: ClusterFacts) -> Mapping[tuple[str, str], bool | None]:
    """Waiting pods by namespace and name: whether a claim of theirs is for GPUs, None where that is not known."""
    templates = {key_of(item): mapping(item, "spec", "spec") for item in facts.items_or_none("templates")}
    claims = {key_of(item): item for item in facts.items_or_none("claims")}
    classes = _classes(facts)
    own = driver_names(facts)
    found: dict[tuple[str, str], bool | None] = {}
    for pod in waiting_pods(facts):
        said: list[bool | None] = [True for _ in extended_resources(pod)]
        said += [_of_claim(item, classes, own) for item in _claims_of(pod, claims, templates)]
        found[key_of(pod)] = True if True in said else None if None in said else False
    return found


def gpu_names(facts: ClusterFacts) -> set[tuple[str, str]]:
    """Kind and name of the claims and templates of any namespace that are for GPUs."""
    classes, own = _classes(facts), driver_names(facts)
    found = {
        ("ResourceClaimTemplate", name_of(item))
        for item in facts.items_or_none("templates")
        if _of_claim({"spec": mapping(item, "spec", "spec")}, classes, own)
    }
    return found | {
        ("ResourceClaim", name_of(item)) for item in facts.items_or_none("claims") if _of_claim(item, classes, own)
    }


def _classes(facts: ClusterFacts) -> dict[str, bool | None]:
    """Whether a class is for GPUs, by its name; None for one without selectors, which takes any device."""
    own = driver_names(facts)
    found: dict[str, bool | None] = {}
    for item in facts.items_or_none("classes"):
        found[name_of(item)] = is_for(item, own) if expressions(item) else None
    return {**found, WHOLE: True, PARTITIONS: True}


def _claims_of(
    pod: Wire, claims: Mapping[tuple[str, str], Wire], templates: Mapping[tuple[str, str], Wire]
) -> Iterator[Wire | None]:
    """The pod's claims, and templates as claims; None for one that is not there."""
    place = namespace_of(pod)
    for name in claim_names(pod):
        yield claims.get((place, name))
    for name in template_names(pod):
        spec = templates.get((place, name))
        yield None if spec is None else {"spec": spec}
    for status in dicts(pod, "status", "resourceClaimStatuses"):
        if item := claims.get((place, text(status, "resourceClaimName"))):
            yield item


def _of_claim(claim: Wire | None, classes: Mapping[str, bool | None], own: list[str]) -> bool | None:
    if claim is None:
        return None
    results = dicts(claim, "status", "allocation", "devices", "results")
    said = [classes.get(name) for name in classes_in(mapping(claim, "spec"))]
    if True in said or any(text(each, "driver") in own for each in results):
        return True
    return None if None in said and not results else False

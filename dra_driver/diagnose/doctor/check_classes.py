"""Checks of DeviceClasses: that those of the driver are there, can be evaluated, and select published devices."""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.core.finding import Finding, Layer, Status, check, fail, finding, ok, warn
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.facts import ClusterFacts, Wire, dicts, name_of, text
from dra_driver.diagnose.doctor.views import (
    PARTITIONS,
    WHOLE,
    driver_names,
    expressions,
    gpu_nodes,
    is_for,
    own_slices,
    shown,
    used_classes,
)
from dra_driver.kube.published.names import TYPE_MIG
from dra_driver.scheduler.cel import DeviceView, Program, compile_selector

MOST_DEVICES: Final = 5000
"""Devices on which a class is tried; the nodes of a fleet repeat each other."""


class ClassMatch(Struct, frozen=True, kw_only=True):
    """How often a class matched of the devices it was tried on; ``problem`` is why it cannot be evaluated."""

    matched: bool = False
    problem: str = ""


@check("classes-present", Layer.CLASSES, "the DeviceClasses of the driver")
def _present(facts: ClusterFacts) -> Iterator[Finding]:
    names = {name_of(item) for item in facts.items("classes")}
    if not (facts.items_or_none(fact.DAEMONSETS) or facts.items_or_none("slices")):
        return
    for name, status, what in (
        (WHOLE, Status.FAIL, "whole GPUs"),
        (PARTITIONS, Status.WARN, "MIG partitions"),
    ):
        if name not in names:
            yield finding(
                status,
                "does not exist",
                f"the DeviceClass that claims for {what} name",
                "kubectl apply -f deploy/base/deviceclasses.yaml, or helm upgrade.",
                f"class/{name}",
            )
        else:
            yield ok("exists", f"class/{name}")


@check("classes-match", Layer.CLASSES, "that DeviceClasses select devices")
def _match(facts: ClusterFacts) -> Iterator[Finding]:
    views = device_views(own_slices(facts))
    if not views:
        return
    used = used_classes(facts)
    drivers = driver_names(facts)
    for item in facts.items("classes"):
        name = name_of(item)
        if not is_for(item, drivers) and name not in (WHOLE, PARTITIONS):
            continue
        match = match_of(item, views)
        if match.problem:
            yield fail(
                f"its selector cannot be evaluated: {match.problem}",
                "selectors that hold for every device",
                "kubectl dra lint class.yaml says where; one such error ends the scheduling of a pod on all nodes.",
                f"class/{name}",
            )
        elif not match.matched and (name == WHOLE or name in used):
            yield _no_match(item, facts, used.get(name, ()), drivers)
        elif match.matched and name == WHOLE:
            yield ok("selects published devices", f"class/{name}")


def _no_match(item: Wire, facts: ClusterFacts, users: Sequence[str], drivers: Sequence[str]) -> Finding:
    name = name_of(item)
    asked = f"; {shown(list(users))} asks for it" if users else ""
    is_foreign = not is_for(item, drivers)
    if is_foreign:
        seen = f"its selector is for another driver than {shown(list(drivers))}{asked}"
        do = "Apply deploy/base/deviceclasses.yaml again, or set driverName of the chart to the name in the selector."
    elif TYPE_MIG in " ".join(expressions(item)) or "profile" in " ".join(expressions(item)):
        seen = f"no published device matches it{asked}: {_why_no_partitions(facts)}"
        do = "kubectl dra devices shows the profiles that are published; docs/mig.md says what publishes them."
    else:
        seen = f"no published device matches it{asked}"
        do = "kubectl dra explain claim/NAME shows which clause rejects which devices; GPUs that a policy divides are "
        do += "published in that form."
    status = Status.FAIL if name == WHOLE or users else Status.WARN
    return finding(status, seen, "a class that selects devices", do, f"class/{name}")


def _why_no_partitions(facts: ClusterFacts) -> str:
    forms = {form for status in gpu_nodes(facts).values() for gpu in status.gpus for form in gpu.offered_as}
    if facts.knows(fact.GATES) and facts.value(fact.GATES).get("DRAPartitionableDevices") is not True:
        return "the feature gate DRAPartitionableDevices is off, so partitions that do not exist yet are not published"
    if forms and "Partitions" not in forms:
        return "no node offers partitions: its GPUs have no MIG, or a policy does not allow them"
    return "no partition of this kind is offered"


@check("extended-resources", Layer.CLASSES, "extended resources of DeviceClasses")
def _extended(facts: ClusterFacts) -> Iterator[Finding]:
    by_resource: dict[str, list[str]] = {}
    for item in facts.items("classes"):
        if resource := text(item, "spec", "extendedResourceName"):
            by_resource.setdefault(resource, []).append(name_of(item))
    for resource, names in sorted(by_resource.items()):
        if len(names) > 1:
            yield warn(
                f"several classes have the extended resource {resource}: {shown(sorted(names))}",
                "one class for an extended resource",
                "Remove extendedResourceName from all but one: the scheduler takes the newest of them.",
                f"class/{names[0]}",
            )


def device_views(slices: Sequence[Wire]) -> list[DeviceView]:
    """The first devices of all slices, as selectors see them."""
    found: list[DeviceView] = []
    for item in slices:
        driver = text(item, "spec", "driver")
        found += [DeviceView(driver, dict(device), lists=True) for device in dicts(item, "spec", "devices")]
        if len(found) >= MOST_DEVICES:
            break
    return found[:MOST_DEVICES]


def match_of(item: Wire, views: Sequence[DeviceView]) -> ClassMatch:
    """Whether all selectors of the class hold for one of the devices."""
    try:
        programs = [compile_selector(expression) for expression in expressions(item)]
        return ClassMatch(matched=any(_holds(programs, view) for view in views))
    except (CelSyntaxError, CelEvaluationError) as error:
        return ClassMatch(problem=" ".join(str(error).split())[:300])


def _holds(programs: Sequence[Program], view: DeviceView) -> bool:
    return all(program.evaluate(view) for program in programs)


CHECKS: Final = (_present, _match, _extended)

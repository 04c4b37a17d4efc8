"""Workloads: objects of any kind that contain pod specifications. Pure.

Fields that only the API server sets are left out, so that what was read from a cluster can be applied.
"""

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_driver.kubectl.migrate import pods
from dra_driver.kubectl.migrate.claims import TemplateBook
from dra_driver.kubectl.migrate.ledger import (
    UNCHANGED,
    FieldOutcome,
    InputDocument,
    Ledger,
    MigrationNote,
    Path,
    at,
    list_at,
    mapping_at,
)
from dra_driver.kubectl.migrate.pods import RESOURCE_PREFIX, PodOptions, sees_all_gpus
from dra_driver.kubectl.migrate.resources import KnownResources, NoDeviceError

_SEARCHED: Final = 20_000
_SERVER_SET: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_IMMUTABLE: Final = {
    "Pod": "a pod's containers cannot be changed: delete it before",
    "Job": "a Job's pods cannot be changed: delete it before",
}
_JOB_LABELS: Final = frozenset({"controller-uid", "batch.kubernetes.io/controller-uid", "job-name",
                                "batch.kubernetes.io/job-name"})  # fmt: skip


class TranslatedWorkload(Struct, frozen=True, kw_only=True):
    """``value`` is the changed object, None where it stays as it is.

    ``can_stay``: it asks for devices, and classes with an extended resource could serve it unchanged.
    """

    value: dict[str, Any] | None
    notes: tuple[MigrationNote, ...]
    can_stay: bool = False


def pod_specs(value: Any) -> Iterator[tuple[Path, Any]]:
    """Each mapping with a list ``containers``, with its path."""
    waiting: list[tuple[Path, Any]] = [((), value)]
    looked_at = 0
    while waiting and looked_at < _SEARCHED:
        path, found = waiting.pop()
        looked_at += 1
        if isinstance(found, Mapping):
            if isinstance(found.get("containers"), list):
                yield path, found
            else:
                waiting += [((*path, key), item) for key, item in found.items() if isinstance(item, Mapping | list)]
        elif isinstance(found, list):
            waiting += [((*path, index), item) for index, item in enumerate(found) if isinstance(item, Mapping | list)]


def translate(document: InputDocument, options: PodOptions, book: TemplateBook) -> TranslatedWorkload:
    ledger = Ledger(document)
    value = copy.deepcopy(document.value)
    specs = list(pod_specs(value))
    asking = [(path, spec) for path, spec in specs if pods.asks_for_devices(spec, options.resources.of)]
    for path, spec in specs:
        if not pods.asks_for_devices(spec, options.resources.of):
            sees_all_gpus(spec, path, ledger)
    can_stay = bool(asking) and not any(pods.obstacle(spec, options) for _, spec in asking)
    if options.keep and can_stay:
        for path, spec in asking:
            book.profiles |= pods.profiles(spec, options)
            ledger.carried(path, "stays as it is: classes of this driver have its extended resources")
        return TranslatedWorkload(value=None, notes=ledger.close(FieldOutcome.CARRIED, UNCHANGED), can_stay=True)
    changed = [
        pods.translate(spec, path, ledger, namespace=document.namespace, options=options, book=book)
        for path, spec in asking
        if isinstance(spec, dict)
    ]
    if not any(changed):
        return TranslatedWorkload(value=None, notes=ledger.close(FieldOutcome.CARRIED, UNCHANGED))
    if document.kind in _IMMUTABLE:
        ledger.changed(("kind",), _IMMUTABLE[document.kind])
    forget_server_fields(value, ledger)
    return TranslatedWorkload(value=value, notes=ledger.close(FieldOutcome.CARRIED, UNCHANGED), can_stay=can_stay)


def forget_server_fields(value: dict[str, Any], ledger: Ledger) -> None:
    """Removes what the API server sets, from an object that was read from a cluster."""
    text = "left out: the API server sets it"
    metadata = value.get("metadata")
    if isinstance(metadata, dict):
        for key in _SERVER_SET:
            if metadata.pop(key, None) is not None:
                ledger.carried(("metadata", key), text)
        if mapping_at(metadata, "annotations").get(_APPLIED) is not None:
            del metadata["annotations"][_APPLIED]
            ledger.carried(("metadata", "annotations", _APPLIED), "left out: kubectl sets it")
            if not metadata["annotations"]:
                del metadata["annotations"]
    if "status" in value:
        del value["status"]
        ledger.carried(("status",), text)
    spec = mapping_at(value, "spec")
    if value.get("kind") == "Job" and "selector" in spec and not spec.get("manualSelector"):
        _forget_job_selector(value, ledger)


def _forget_job_selector(value: dict[str, Any], ledger: Ledger) -> None:
    """The API server makes a Job's selector from its UID, and refuses that of another."""
    text = "left out: the API server makes it for each Job"
    del value["spec"]["selector"]
    ledger.carried(("spec", "selector"), text)
    for base in (("metadata",), ("spec", "template", "metadata")):
        labels = at(value, *base, "labels")
        for key in sorted(_JOB_LABELS & set(labels or ())):
            del labels[key]
            ledger.carried((*base, "labels", key), text)


# --- ResourceQuota and LimitRange with resources of the device plugin.
#
# A quota for claims counts devices by class: ``<class>.deviceclass.resource.k8s.io/devices`` (core/v1, resource
# quotas).

_SUFFIX: Final = "deviceclass.resource.k8s.io/devices"
_PARTS: Final = ("default", "defaultRequest", "max", "min", "maxLimitRequestRatio")
_BOTH: Final = "the line stays for pods that are not moved yet; remove it at the end, as a namespace may use up both"


def translate_quota(
    document: InputDocument, known: KnownResources
) -> tuple[dict[str, Any] | None, tuple[MigrationNote, ...]]:
    """The quota with a line for each class; None where it has no line of the device plugin."""
    ledger, value, changed = Ledger(document), copy.deepcopy(document.value), False
    for name, limit in mapping_at(document.value, "spec", "hard").items():
        resource = name.removeprefix("requests.").removeprefix("limits.")
        if not resource.startswith(RESOURCE_PREFIX):
            continue
        path = ("spec", "hard", name)
        try:
            meaning = known.meaning(resource, {})
        except NoDeviceError as error:
            ledger.lost(path, f"{error}; the line stays")
            continue
        line = f"{meaning.device_class}.{_SUFFIX}"
        hard = value["spec"]["hard"]
        if meaning.form.form == "share" and line in hard:
            ledger.changed(path, f"{line} counts whole GPUs and shares alike; {_BOTH}")
            continue
        hard[line] = str(limit)
        changed = True
        text = f"the same number of devices for claims: {line}; {_BOTH}"
        ledger.changed(path, f"{text}. Shares and whole GPUs count alike" if meaning.form.form != "partition" else text)
    if changed:
        forget_server_fields(value, ledger)
    return (value if changed else None), ledger.close(FieldOutcome.CARRIED, UNCHANGED)


def translate_limit_range(
    document: InputDocument, renamed: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, tuple[MigrationNote, ...]]:
    """The LimitRange without the resources: a default would give every container a GPU beside its claim."""
    ledger, value, changed = Ledger(document), copy.deepcopy(document.value), False
    for index in range(len(list_at(value, "spec", "limits"))):
        for part in _PARTS:
            resources = at(value, "spec", "limits", index, part)
            if not isinstance(resources, dict):
                continue
            for name in [each for each in resources if each.startswith(RESOURCE_PREFIX) or each in renamed]:
                del resources[name]
                changed = True
                text = "claims have no limits and defaults by namespace"
                if part.startswith("default"):
                    text += "; left in place, it would give a GPU beside the claim to every container"
                ledger.lost(("spec", "limits", index, part, name), f"{text}; removed")
            if not resources:
                del value["spec"]["limits"][index][part]
    if changed:
        forget_server_fields(value, ledger)
    return (value if changed else None), ledger.close(FieldOutcome.CARRIED, UNCHANGED)

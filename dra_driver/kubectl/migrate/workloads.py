"""Workloads: objects of any kind that contain pod specifications. Pure.

Fields that only the API server sets are left out, so that what was read from a cluster can be applied.
"""

import copy
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from dra_driver.kubectl.migrate import pods
from dra_driver.kubectl.migrate.claims import TemplateBook
from dra_driver.kubectl.migrate.ledger import (
    CARRIED,
    UNCHANGED,
    InputDocument,
    Ledger,
    MigrationNote,
    Path,
    at,
    children,
    list_at,
    mapping_at,
)
from dra_driver.kubectl.migrate.pods import RESOURCE_PREFIX, PodOptions
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


class TranslatedObject(Struct, frozen=True, kw_only=True):
    """``value`` is the changed object, None where it stays as it is.

    ``can_stay``: it asks for devices, and classes with an extended resource could serve it unchanged.
    """

    value: dict[str, object] | None = None
    notes: tuple[MigrationNote, ...]
    can_stay: bool = False


def pod_specs(value: object) -> Iterator[tuple[Path, dict[str, object]]]:
    """Each mapping with a list ``containers``, with its path."""
    waiting: list[tuple[Path, object]] = [((), value)]
    looked_at = 0
    while waiting and looked_at < _SEARCHED:
        path, found = waiting.pop()
        looked_at += 1
        if isinstance(found, dict) and isinstance(found.get("containers"), list):
            yield path, found
        else:
            waiting += [((*path, step), item) for step, item in children(found) if isinstance(item, dict | list)]


def translate(document: InputDocument, options: PodOptions, book: TemplateBook) -> TranslatedObject:
    ledger = Ledger(document)
    value = copy.deepcopy(mapping_at(document.value))
    asking: list[tuple[Path, dict[str, object]]] = []
    for path, spec in pod_specs(value):
        if pods.resource_names(spec, options.resources):
            asking.append((path, spec))
        else:
            pods.sees_all_gpus(spec, path, ledger)
    can_stay = bool(asking) and all(pods.can_stay(spec, options) for _, spec in asking)
    if options.keep and can_stay:
        for path, spec in asking:
            book.profiles |= pods.profiles(spec, options)
            ledger.carried(path, "stays as it is: classes of this driver have its extended resources")
        return TranslatedObject(notes=ledger.close(CARRIED, UNCHANGED), can_stay=True)
    changed = [
        pods.translate(spec, path, ledger, namespace=document.namespace, options=options, book=book)
        for path, spec in asking
    ]
    if any(changed) and document.kind in _IMMUTABLE:
        ledger.changed(("kind",), _IMMUTABLE[document.kind])
    return _finished(value, ledger, changed=any(changed), can_stay=can_stay)


def _finished(value: dict[str, object], ledger: Ledger, *, changed: bool, can_stay: bool = False) -> TranslatedObject:
    if not changed:
        return TranslatedObject(notes=ledger.close(CARRIED, UNCHANGED))
    _forget_server_fields(value, ledger)
    return TranslatedObject(value=value, notes=ledger.close(CARRIED, UNCHANGED), can_stay=can_stay)


def _forget_server_fields(value: dict[str, object], ledger: Ledger) -> None:
    """Removes what the API server sets, from an object that was read from a cluster."""
    text = "left out: the API server sets it"
    metadata, annotations = mapping_at(value, "metadata"), mapping_at(value, "metadata", "annotations")
    for key in _SERVER_SET:
        if metadata.pop(key, None) is not None:
            ledger.carried(("metadata", key), text)
    if annotations.pop(_APPLIED, None) is not None:
        ledger.carried(("metadata", "annotations", _APPLIED), "left out: kubectl sets it")
        if not annotations:
            del metadata["annotations"]
    if "status" in value:
        del value["status"]
        ledger.carried(("status",), text)
    spec = mapping_at(value, "spec")
    if value.get("kind") == "Job" and "selector" in spec and not spec.get("manualSelector"):
        # The API server makes a Job's selector from its UID, and refuses that of another.
        text = "left out: the API server makes it for each Job"
        del spec["selector"]
        ledger.carried(("spec", "selector"), text)
        for base in (("metadata", "labels"), ("spec", "template", "metadata", "labels")):
            labels = mapping_at(value, *base)
            for key in sorted(_JOB_LABELS & labels.keys()):
                del labels[key]
                ledger.carried((*base, key), text)


# --- ResourceQuota and LimitRange with resources of the device plugin.
#
# A quota for claims counts devices by class: ``<class>.deviceclass.resource.k8s.io/devices`` (core/v1, quotas).

_SUFFIX: Final = "deviceclass.resource.k8s.io/devices"
_PARTS: Final = ("default", "defaultRequest", "max", "min", "maxLimitRequestRatio")
_BOTH: Final = "the line stays for pods that are not moved yet; remove it at the end, as a namespace may use up both"


def translate_quota(document: InputDocument, known: KnownResources) -> TranslatedObject:
    """The quota with a line for each class."""
    ledger, value, changed = Ledger(document), copy.deepcopy(mapping_at(document.value)), False
    hard = mapping_at(value, "spec", "hard")
    for name, limit in list(hard.items()):
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
        if meaning.form.form == "share" and line in hard:
            ledger.changed(path, f"{line} counts whole GPUs and shares alike; {_BOTH}")
            continue
        hard[line] = str(limit)
        changed = True
        text = f"the same number of devices for claims: {line}; {_BOTH}"
        ledger.changed(path, f"{text}. Shares and whole GPUs count alike" if meaning.form.form != "partition" else text)
    return _finished(value, ledger, changed=changed)


def translate_limit_range(document: InputDocument, known: KnownResources) -> TranslatedObject:
    """The LimitRange without the resources: a default would give every container a GPU beside its claim."""
    ledger, value, changed = Ledger(document), copy.deepcopy(mapping_at(document.value)), False
    for index, limits in enumerate(list_at(value, "spec", "limits")):
        for part in _PARTS:
            resources = mapping_at(limits, part)
            for name in [each for each in resources if each.startswith(RESOURCE_PREFIX) or each in known.of]:
                del resources[name]
                changed = True
                text = "claims have no limits and defaults by namespace"
                if part.startswith("default"):
                    text += "; left in place, it would give a GPU beside the claim to every container"
                ledger.lost(("spec", "limits", index, part, name), f"{text}; removed")
            if at(limits, part) == {}:
                del mapping_at(limits)[part]
    return _finished(value, ledger, changed=changed)

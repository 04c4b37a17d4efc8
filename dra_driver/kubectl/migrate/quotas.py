"""ResourceQuota and LimitRange with resources of the device plugin. Pure.

A quota for claims counts devices by class: ``<class>.deviceclass.resource.k8s.io/devices`` (core/v1, resource quotas).
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from dra_driver.kubectl.migrate.input import InputDocument, at, list_at, mapping_at
from dra_driver.kubectl.migrate.ledger import UNCHANGED, FieldOutcome, Ledger, MigrationNote
from dra_driver.kubectl.migrate.pods import RESOURCE_PREFIX
from dra_driver.kubectl.migrate.resources import KnownResources, NoDeviceError
from dra_driver.kubectl.migrate.workloads import forget_server_fields

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

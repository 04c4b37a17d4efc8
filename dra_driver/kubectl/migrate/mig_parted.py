"""The config of mig-parted, which NVIDIA's MIG manager applies to nodes (version v1). Pure.

Source: NVIDIA/mig-parted api/spec/v1/spec.go (strict: unknown fields are refused) and pkg/types (profiles, device ids
such as 0x233010DE: PCI device, then vendor). mig-parted numbers GPUs as NVML does, by PCI address.
"""

import re
from collections.abc import Mapping
from typing import Final

from dra_driver.hardware.gpu import catalog
from dra_driver.kubectl.migrate.ledger import (
    Gathered,
    GpuLayout,
    InputDocument,
    Ledger,
    MigLayout,
    MigrationNote,
    Path,
    at,
    mapping_at,
)
from dra_driver.kubectl.migrate.plugin_config import dns_name

_ENTRY: Final = frozenset({"device-filter", "devices", "mig-enabled", "mig-devices"})
_PROFILE: Final = re.compile(r"(?:[1-9]c\.)?[1-9]g\.[1-9][0-9]*gb(?:[+-][a-z.]+(?:,[a-z.]+)*)?")
_MINORS: Final = (
    "became select.minors of the policy: N of /dev/nvidiaN, which is NVML's index unless the kernel numbers the devices"
    " in another order; compare with `nvidia-smi -q`"
)
_DEVICE_ID: Final = re.compile(r"0x([0-9A-Fa-f]{4})10DE", re.IGNORECASE)


def is_mig_parted(value: object) -> bool:
    return "mig-configs" in mapping_at(value) and "kind" not in mapping_at(value)


def translate(document: InputDocument, gathered: Gathered) -> tuple[MigrationNote, ...]:
    """Adds the layouts to ``gathered``. Raises ConfigurationError as mig-parted would refuse the file."""
    ledger = Ledger(document)
    value = mapping_at(document.value)
    if value.get("version") != "v1":
        seen = str(value.get("version"))[:40] if "version" in value else "none"
        raise document.error(("version",), f"expected version v1 of mig-parted's config, got {seen}")
    ledger.carried(("version",), "the version of the format")
    if unexpected := sorted(set(value) - {"version", "mig-configs"}):
        raise document.error((unexpected[0],), f"mig-parted knows no field {unexpected[0]!r} here")
    configs = value["mig-configs"]
    if not isinstance(configs, dict) or not configs:
        raise document.error(("mig-configs",), "expected a mapping of names to lists of GPUs")
    for name, entries in configs.items():
        path = ("mig-configs", name)
        if not isinstance(entries, list) or not entries:
            raise document.error(path, "expected a list with at least one entry")
        found = [_entry(document, (*path, index), str(name), ledger) for index in range(len(entries))]
        gathered.layouts[str(name)] = MigLayout(name=str(name), entries=[each for each in found if each is not None])
    return ledger.close()


def layout_policy_name(config: str) -> str:
    """The name of the policy that a config becomes, before the number of the entry."""
    return dns_name(f"mig-{config}")


def _entry(document: InputDocument, path: Path, name: str, ledger: Ledger) -> GpuLayout | None:
    entry = at(document.value, *path)
    if not isinstance(entry, dict):
        raise document.error(path, "expected a mapping")
    for missing in sorted({"devices", "mig-enabled"} - set(entry)):
        raise document.error(path, f"the required field {missing} is missing")
    if unexpected := sorted(set(entry) - _ENTRY):
        raise document.error((*path, unexpected[0]), f"mig-parted knows no field {unexpected[0]!r} here")
    enabled = entry["mig-enabled"]
    if not isinstance(enabled, bool):
        raise document.error((*path, "mig-enabled"), "expected true or false")
    profiles = _profiles(document, path, enabled)
    products, usable = _products(document, path, ledger)
    minors = _minors(document, path, ledger)
    if not usable:
        for key in ("mig-enabled", "mig-devices"):
            if key in entry:
                ledger.lost((*path, key), "without a product that is known, its policy would be for all GPUs")
        return None
    _note_profiles(entry, path, layout_policy_name(name), profiles, ledger)
    return GpuLayout(minors=minors, products=products, profiles=profiles)


def _profiles(document: InputDocument, path: Path, enabled: bool) -> dict[str, int] | None:
    place = (*path, "mig-devices")
    devices = at(document.value, *place)
    if enabled and devices is None:
        raise document.error(path, "the required field mig-devices is missing where mig-enabled is true")
    if devices is not None and not isinstance(devices, dict):
        raise document.error(place, "expected a mapping of profiles to counts")
    for profile, count in (devices or {}).items():
        if not _PROFILE.fullmatch(str(profile)):
            raise document.error((*place, profile), f"{str(profile)[:40]!r} is no MIG profile")
        if not _is_count(count, most=64):
            raise document.error((*place, profile), f"expected a count from 0 to 64, got {str(count)[:40]!r}")
    if not enabled and devices:
        raise document.error(place, "MIG devices where mig-enabled is false")
    if devices and not any(devices.values()):
        raise document.error(place, "all counts are 0")
    return {str(key): count for key, count in devices.items() if count} if enabled and devices is not None else None


def _products(document: InputDocument, path: Path, ledger: Ledger) -> tuple[tuple[str, ...], bool]:
    """Product names of the filter, and whether the entry is for anything that is known."""
    wanted = at(document.value, *path, "device-filter")
    if wanted is None or wanted in ([], ""):
        if wanted is not None:
            ledger.carried((*path, "device-filter"), "empty: GPUs of any product")
        return (), True
    place: Path = (*path, "device-filter")
    ids = {(*place, index): each for index, each in enumerate(wanted)} if isinstance(wanted, list) else {place: wanted}
    if not all(isinstance(each, str) for each in ids.values()):
        raise document.error(place, f"expected PCI ids as texts, got {str(wanted)[:40]}")
    known = {model.pci_device_id: model.product_name for model in catalog.models().values()}
    found: list[str] = []
    for place, each in ids.items():
        match = _DEVICE_ID.fullmatch(str(each))
        product = known.get(int(match[1], 16)) if match else None
        if product is None:
            ledger.lost(place, f"no board of the catalog has the PCI id {str(each)[:40]}; add its product name, as"
                               " nvidia-smi -L prints it, to select.productNames of the policy")  # fmt: skip
        else:
            found.append(product)
            ledger.carried(place, f"became select.productNames {product!r} of the policy")
    return tuple(dict.fromkeys(found)), bool(found)


def _minors(document: InputDocument, path: Path, ledger: Ledger) -> tuple[int, ...] | None:
    place = (*path, "devices")
    devices = at(document.value, *place)
    if devices == "all":
        ledger.carried(place, "the policy is for all of these GPUs")
        return None
    if not isinstance(devices, list) or len(devices) > 64 or not all(_is_count(each, most=255) for each in devices):
        raise document.error(place, f"expected all or a list of GPU indexes, got {str(devices)[:40]!r}")
    ledger.changed(place, _MINORS)
    return tuple(sorted(set(devices)))


def _is_count(value: object, *, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _note_profiles(
    entry: dict[str, object], path: Path, policy: str, profiles: Mapping[str, int] | None, ledger: Ledger
) -> None:
    if profiles is None:
        ledger.carried((*path, "mig-enabled"), f"became policy {policy}: whole GPUs alone (forms.migProfiles: [])")
        if "mig-devices" in entry:
            ledger.carried((*path, "mig-devices"), "empty: there is nothing to carry over")
        return
    text = f"became policy {policy}: the GPU is cut when claims come, and restored; no layout is kept"
    ledger.changed((*path, "mig-enabled"), text)
    if not entry["mig-devices"]:
        ledger.carried((*path, "mig-devices"), "none: the policy offers these GPUs to no claim (availability: Hidden)")
    for profile, count in mapping_at(entry, "mig-devices").items():
        place = (*path, "mig-devices", profile)
        if re.match(r"[1-9]c\.", str(profile)):
            ledger.lost(place, "this driver makes no compute instance that is smaller than its GPU instance")
        elif not count:
            ledger.carried(place, "none of this profile")
        else:
            text = f"became forms.migProfiles of policy {policy} and a DeviceClass; as many as claims ask for and fit"
            ledger.changed(place, f"{text}, where there were {count}")

"""Create GpuPolicies and DeviceClasses from device plugin configs and mig-parted layouts.

Only the matching policy with the highest priority applies to a GPU. If a layout keeps GPUs whole and a config shares
them, both policies are merged.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.mig import COMPUTE, no_compute_instance
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import profiles as mig_profiles
from dra_driver.hardware.mig.order import fixed_placements
from dra_driver.kube.published import names
from dra_driver.kube.published.device_classes import API_VERSION, MANAGED_BY, Offer, class_of
from dra_driver.kubectl.migrate.gfd_labels import DeviceForm
from dra_driver.kubectl.migrate.ledger import (
    MIG_LABEL,
    PLUGIN_LABEL,
    FieldNote,
    Gathered,
    GpuLayout,
    InputDocument,
    Ledger,
    Path,
    PluginConfig,
    at,
    mapping_at,
)
from dra_driver.kubectl.migrate.plugin_config import dns_name, policy_name
from dra_driver.kubectl.migrate.resources import (
    GPU,
    SHARED,
    KnownResources,
    MemoryKnowledge,
    ResourceMeaning,
    class_name,
    share_meaning,
    share_percent,
)

_ENTRY: Final = frozenset({"device-filter", "devices", "mig-enabled", "mig-devices"})
_PROFILE: Final = re.compile(r"(?:[1-9]c\.)?[1-9]g\.[1-9][0-9]*gb(?:[+-][a-z.]+(?:,[a-z.]+)*)?")
_MINORS: Final = (
    "became select.minors of the policy: N of /dev/nvidiaN, by default NVML's index; compare with `nvidia-smi -q`"
)
_LAYOUT_PROFILE: Final = re.compile(r"[0-9]+g\.[0-9]+gb(\+[a-z.]+)?")
MAX_PROFILES: Final = 8
MAX_COUNT: Final = 16
"""Limits of ``mig.layout`` (config/schemas/gpu_policy.py)."""
_DEVICE_ID: Final = re.compile(r"0x([0-9A-Fa-f]{4})10DE", re.IGNORECASE)


def is_mig_parted(value: object) -> bool:
    return "mig-configs" in mapping_at(value) and "kind" not in mapping_at(value)


# --- The config of mig-parted, version v1 (NVIDIA/mig-parted api/spec/v1/spec.go and pkg/types).
#
# mig-parted rejects unknown fields. Device ids such as 0x233010DE are PCI device, then vendor. GPU numbers are NVML's.


def read_layouts(document: InputDocument, gathered: Gathered) -> tuple[FieldNote, ...]:
    """Add the layouts to ``gathered``. Raises ConfigurationError for files that mig-parted rejects."""
    ledger = Ledger(document)
    value = mapping_at(document.value)
    if value.get("version") != "v1":
        seen = str(value.get("version"))[:40] if "version" in value else "none"
        raise document.error(("version",), f"expected version v1 of mig-parted's config, got {seen}")
    ledger.carried(("version",), "the version of the format")
    if unexpected := sorted(set(value) - {"version", "mig-configs"}):
        raise document.error((unexpected[0],), f"unknown field {unexpected[0]!r} of mig-parted")
    configs = value["mig-configs"]
    if not isinstance(configs, dict) or not configs:
        raise document.error(("mig-configs",), "expected a mapping of names to lists of GPUs")
    for name, entries in configs.items():
        path = ("mig-configs", name)
        if not isinstance(entries, list) or not entries:
            raise document.error(path, "expected a list with at least one entry")
        found = [_entry(document, (*path, index), str(name), ledger) for index in range(len(entries))]
        gathered.layouts[str(name)] = [each for each in found if each is not None]
    return ledger.close()


def _entry(document: InputDocument, path: Path, name: str, ledger: Ledger) -> GpuLayout | None:
    entry = at(document.value, *path)
    if not isinstance(entry, dict):
        raise document.error(path, "expected a mapping")
    for missing in sorted({"devices", "mig-enabled"} - set(entry)):
        raise document.error(path, f"the required field {missing} is missing")
    if unexpected := sorted(set(entry) - _ENTRY):
        raise document.error((*path, unexpected[0]), f"unknown field {unexpected[0]!r} of mig-parted")
    enabled = entry["mig-enabled"]
    if not isinstance(enabled, bool):
        raise document.error((*path, "mig-enabled"), "expected true or false")
    profiles = _profiles(document, path, enabled)
    products, usable = _products(document, path, ledger)
    minors = _minors(document, path, ledger)
    if not usable:
        for key in ("mig-enabled", "mig-devices"):
            if key in entry:
                ledger.lost((*path, key), "unknown product: its policy would apply to all GPUs")
        return None
    policy, why_not = dns_name(f"mig-{name}"), _why_not_pinned(profiles or {}, products)
    _note_mode(entry, path, policy, profiles, ledger)
    _note_profiles(entry, path, policy, why_not, ledger)
    return GpuLayout(minors=minors, products=products, profiles=profiles, pinned=bool(profiles) and not why_not)


def _why_not_pinned(profiles: Mapping[str, int], products: Sequence[str]) -> str:
    """The reason why ``mig.layout`` cannot have these counts; "" when it can. Without products, one known board with
    these profiles has to have room; boards that the catalogue lacks count as if they had."""
    if any(COMPUTE.match(profile) for profile in profiles):
        return "compute instances are not supported"
    unfit = any(not _LAYOUT_PROFILE.fullmatch(name) or count > MAX_COUNT for name, count in profiles.items())
    if unfit or len(profiles) > MAX_PROFILES:
        return f"mig.layout has at most {MAX_PROFILES} profiles and {MAX_COUNT} partitions of each"
    boards = [model for model in catalog.models().values() if not products or model.product_name in products]
    known = [{each.name: each for each in mig_profiles(board.mig)} for board in boards if board.mig is not None]
    able = [each for each in known if profiles.keys() <= each.keys()]
    if products and len(able) < len(boards):
        return "not all of these boards have these profiles"
    fits = [fixed_placements([of[name] for name, count in profiles.items() for _ in range(count)]) for of in able]
    if fits and not (all(fits) if products else any(fits)):
        return "they do not fit on the GPU together"
    return ""


def _profiles(document: InputDocument, path: Path, enabled: bool) -> dict[str, int] | None:
    place = (*path, "mig-devices")
    devices = at(document.value, *place)
    if enabled and devices is None:
        raise document.error(path, "the required field mig-devices is missing: mig-enabled is true")
    if devices is not None and not isinstance(devices, dict):
        raise document.error(place, "expected a mapping of profiles to counts")
    for profile, count in (devices or {}).items():
        if not _PROFILE.fullmatch(str(profile)):
            raise document.error((*place, profile), f"{str(profile)[:40]!r} is not a MIG profile")
        if not _is_count(count, most=64):
            raise document.error((*place, profile), f"expected a count from 0 to 64, got {str(count)[:40]!r}")
    if not enabled and devices:
        raise document.error(place, "MIG devices need mig-enabled: true")
    if devices and not any(devices.values()):
        raise document.error(place, "all counts are 0")
    return {str(key): count for key, count in devices.items() if count} if enabled and devices is not None else None


def _products(document: InputDocument, path: Path, ledger: Ledger) -> tuple[tuple[str, ...], bool]:
    wanted = at(document.value, *path, "device-filter")
    if wanted is None or wanted in ([], ""):
        if wanted is not None:
            ledger.carried((*path, "device-filter"), "empty: GPUs of any product")
        return (), True
    place: Path = (*path, "device-filter")
    ids = {(*place, index): each for index, each in enumerate(wanted)} if isinstance(wanted, list) else {place: wanted}
    if not all(isinstance(each, str) for each in ids.values()):
        raise document.error(place, f"expected PCI ids as strings, got {str(wanted)[:40]}")
    known = {model.pci_device_id: model.product_name for model in catalog.models().values()}
    found: list[str] = []
    for place, each in ids.items():
        match = _DEVICE_ID.fullmatch(str(each))
        product = known.get(int(match[1], 16)) if match else None
        if product is None:
            ledger.lost(place, f"unknown PCI id {str(each)[:40]}; add the product name that nvidia-smi -L prints"
                               " to select.productNames of the policy")  # fmt: skip
        else:
            found.append(product)
            ledger.carried(place, f"became select.productNames {product!r} of the policy")
    return tuple(dict.fromkeys(found)), bool(found)


def _minors(document: InputDocument, path: Path, ledger: Ledger) -> tuple[int, ...] | None:
    place = (*path, "devices")
    devices = at(document.value, *place)
    if devices == "all":
        ledger.carried(place, "the policy applies to all these GPUs")
        return None
    if not isinstance(devices, list) or len(devices) > 64 or not all(_is_count(each, most=255) for each in devices):
        raise document.error(place, f"expected all or a list of GPU indexes, got {str(devices)[:40]!r}")
    ledger.changed(place, _MINORS)
    return tuple(sorted(set(devices)))


def _is_count(value: object, *, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _note_mode(
    entry: dict[str, object], path: Path, policy: str, profiles: Mapping[str, int] | None, ledger: Ledger
) -> None:
    if profiles is None:
        text = f"became policy {policy}: only whole GPUs (forms.migProfiles: [], mig.mode: WhenFree)"
        ledger.carried((*path, "mig-enabled"), text)
        if "mig-devices" in entry:
            ledger.carried((*path, "mig-devices"), "empty")
        return
    text = (
        f"became policy {policy} (mig.mode: WhenFree): MIG mode of A100 and A30 is switched on when nothing uses the "
        "GPU; partitions are created on demand and deleted after use"
    )
    ledger.changed((*path, "mig-enabled"), text)
    if not entry["mig-devices"]:
        ledger.carried((*path, "mig-devices"), "none: the policy hides these GPUs (availability: Hidden)")


def _note_profiles(entry: dict[str, object], path: Path, policy: str, why_not_pinned: str, ledger: Ledger) -> None:
    for profile, count in mapping_at(entry, "mig-devices").items():
        place = (*path, "mig-devices", profile)
        if refused := no_compute_instance(str(profile)):
            ledger.lost(place, refused)
        elif not count:
            ledger.carried(place, "none of this profile")
        elif not why_not_pinned:
            ledger.carried(place, f"became mig.layout of policy {policy} and a DeviceClass")
        else:
            text = f"became forms.migProfiles of policy {policy} and a DeviceClass; claims determine the number"
            ledger.changed(place, f"{text}, instead of {count}: {why_not_pinned}")


_SHARED_CLASS: Final = ("deviceClasses", "shared")
MANAGER: Final = "dra-driver-migrate"


def known_resources(gathered: Gathered, driver: str) -> KnownResources:
    """Return the meaning of resource names under the gathered configurations.

    If only some configs share a resource, the default config decides; without one it is a whole GPU. A pod's labels
    take precedence.
    """
    found: dict[str, ResourceMeaning] = {}
    # The default config comes first: the first meaning of a name applies.
    configs = sorted(gathered.plugin_configs.values(), key=lambda config: config.name != gathered.default_config)
    decisive = configs[:1] if configs and configs[0].name == gathered.default_config else configs
    everywhere = bool(configs) and all(map(_shares_gpus, decisive))
    for config in configs:
        for each in config.replicated:
            if each.name != GPU or not each.replicas:
                continue
            meaning = share_meaning(config.strategy, each.replicas, several_refused=config.several_refused)
            name = each.renamed or (GPU if everywhere else f"{GPU}{SHARED}")
            found.setdefault(name, meaning)
    if GPU not in found and (profile := _single_profile(gathered)):
        form = DeviceForm(form="partition", profile=profile, single=True)
        found[GPU] = ResourceMeaning(form=form, device_class=class_name(profile, driver))
    for resource in gathered.renamed:
        found[resource] = ResourceMeaning(form=DeviceForm(), device_class=_class_of_renamed(resource))
    return KnownResources(driver=driver, of=found)


def set_shared_class(gathered: Gathered) -> None:
    """Set the chart values of the class that gives unmodified pods the default share of the policies.

    Shares that keep the name nvidia.com/gpu get it only if every config shares GPUs; otherwise it stays the name of
    whole GPUs, and a pod gets either.
    """
    configs = [config for config in gathered.plugin_configs.values() if config.strategy]
    shared = [(each, config) for config in configs for each in config.replicated if each.name == GPU and each.replicas]
    renamed = [pair for pair in shared if pair[0].renamed]
    kept = [] if renamed or not all(map(_shares_gpus, gathered.plugin_configs.values())) else shared
    for each, config in renamed or kept:
        gathered.set_value((*_SHARED_CLASS, "extendedResourceName"), each.renamed or GPU)
        gathered.set_value((*_SHARED_CLASS, "oneEach"), config.several_refused)
    if kept:
        gathered.set_value(("deviceClasses", "extendedResourceName"), "")


def ambiguity(gathered: Gathered) -> str:
    """Return a message if only some configs define ``nvidia.com/gpu`` as a share, else ""."""
    shared = sorted(name for name, config in gathered.plugin_configs.items() if _shares_gpus(config))
    whole = sorted(set(gathered.plugin_configs) - set(shared))
    if not shared or not whole:
        return ""
    chosen = "a share" if gathered.default_config in shared else "a whole GPU"
    return (
        f"nvidia.com/gpu is a share in the configs {', '.join(shared)} and a GPU in {', '.join(whole)}: pods"
        f" without a product label became claims for {chosen}; check each pod"
    )


def memory_of(gathered: Gathered, said_mib: int) -> MemoryKnowledge:
    labels = (found.get(f"{GPU}.memory", "") for found in gathered.node_labels.values())
    known = [int(value[:9]) for value in labels if value.isdigit()]
    return MemoryKnowledge(said_mib=said_mib, least_mib=min(known, default=0))


def classes(gathered: Gathered, asked_for: Iterable[str], driver: str) -> list[dict[str, object]]:
    """Return classes for profiles, as `kubectl dra classes` creates them, and for renamed resources."""
    entries = [entry for layout in gathered.layouts.values() for entry in layout]
    profiles = {COMPUTE.sub("", each) for entry in entries for each in entry.profiles or ()} | set(asked_for)
    made = [class_of(Offer(names.PROFILE, each), driver) for each in sorted(profiles)]
    return [*made, *(_renamed(*each, driver) for each in sorted(gathered.renamed.items()))]


def _shares_gpus(config: PluginConfig) -> bool:
    return any(each.name == GPU and each.replicas and not each.renamed for each in config.replicated)


def _single_profile(gathered: Gathered) -> str:
    """Return the profile of ``nvidia.com/gpu`` if all nodes have MIG strategy ``single`` and one layout, else ""."""
    strategies = {config.mig_strategy for config in gathered.plugin_configs.values() if config.mig_strategy}
    layout = gathered.layouts.get(gathered.mig_default)
    if (strategies or {gathered.mig_strategy}) != {"single"} or layout is None:
        return ""
    found = {profile for entry in layout for profile in entry.profiles or ("",)}
    return found.pop() if len(found) == 1 else ""


def _class_of_renamed(resource: str) -> str:
    return f"{dns_name(resource.partition('/')[2])}.nvidia.com"


def _renamed(resource: str, pattern: str, driver: str) -> dict[str, object]:
    attributes = f'device.attributes["{driver}"]'
    regex = ".*".join(re.escape(part).replace("\\ ", " ").replace("\\-", "-") for part in pattern.split("*"))
    quoted = f"^{regex}$".replace("\\", "\\\\").replace('"', '\\"')
    text = (
        f'device.driver == "{driver}" && {attributes}.{names.TYPE} == "{names.TYPE_GPU}"'
        f' && {attributes}.{names.PRODUCT_NAME}.matches("{quoted}")'
    )
    return {
        "apiVersion": API_VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": _class_of_renamed(resource), "labels": {MANAGED_BY: MANAGER}},
        "spec": {"extendedResourceName": resource, "selectors": [{"cel": {"expression": text}}]},
    }


API: Final = "gpu.dra-driver.io/v1alpha1"
_MOST_PATTERNS: Final = 32
_DEFAULT_PRIORITY, _NAMED_PRIORITY = 0, 10
_LAYOUT_PRIORITY: Final = 20
"""Added for layouts: partitioning takes precedence over sharing."""
_JOINED_PRIORITY: Final = 50


class PolicyDraft(Struct, frozen=True, kw_only=True):
    """A policy to write. ``nodes`` are names, None for all nodes; ``label`` selected them before. ``layout`` pins the
    partitions. ``switches_mode``: MIG mode follows the forms."""

    name: str
    priority: int
    nodes: tuple[str, ...] | None = None
    label: str = ""
    minors: tuple[int, ...] | None = None
    products: tuple[str, ...] = ()
    profiles: tuple[str, ...] | None = None
    layout: Mapping[str, int] | None = None
    switches_mode: bool = False
    whole: bool = True
    hidden: bool = False
    strategy: str = ""
    max_shares: int = 0


def drafts(gathered: Gathered) -> list[PolicyDraft]:
    """Return the policies of all configs and layouts; layouts are merged with the sharing of the same nodes."""
    # The strategy of a ClusterPolicy or of chart values also applies to nodes without a config.
    configs = list(gathered.plugin_configs.values()) or [PluginConfig(name="")]
    shared = [draft for config in configs for draft in _of_config(config, gathered)]
    joined: list[PolicyDraft] = []
    for name, layout in gathered.layouts.items():
        for draft in _of_layout(name, layout, gathered):
            joined += _joined(draft, shared) if draft.whole and not draft.hidden else [draft]
    return [*shared, *joined]


def objects(found: Sequence[PolicyDraft]) -> list[dict[str, object]]:
    """Return GpuPolicy objects with distinct names; a policy for more than 32 nodes becomes several."""
    taken: set[str] = set()
    made = []
    for draft in found:
        several = draft.nodes or ()
        for first in range(0, max(1, len(several)), _MOST_PATTERNS):
            nodes = several[first : first + _MOST_PATTERNS] or draft.nodes
            numbered = (f"{draft.name[:58].rstrip('-')}-{number}" for number in range(2, 1000))
            name = next(each for each in (draft.name, *numbered) if each not in taken)
            taken.add(name)
            made.append(_object(replace(draft, name=name, nodes=nodes)))
    return made


def needs_names(draft: PolicyDraft) -> bool:
    """Return whether the nodes are unknown: the policy matches no node until it has their names."""
    return draft.nodes == ()


def _of_config(config: PluginConfig, gathered: Gathered) -> Iterator[PolicyDraft]:
    replicas = next((each.replicas for each in config.replicated if each.name == GPU and each.replicas), 0)
    strategy = config.mig_strategy or gathered.mig_strategy
    if not replicas and strategy != "none":
        return
    everywhere = config.name in {"", gathered.default_config} | gathered.standalone
    nodes = None if everywhere else gathered.nodes_with(PLUGIN_LABEL, config.name)
    yield PolicyDraft(
        name=policy_name(config.name),
        priority=_DEFAULT_PRIORITY if everywhere else _NAMED_PRIORITY,
        nodes=nodes,
        label=f"{PLUGIN_LABEL}={config.name}",
        profiles=() if strategy == "none" else None,
        strategy=config.strategy if replicas else "",
        max_shares=replicas,
    )


def _of_layout(name: str, entries: Sequence[GpuLayout], gathered: Gathered) -> Iterator[PolicyDraft]:
    everywhere = name == gathered.mig_default
    nodes = None if everywhere else gathered.nodes_with(MIG_LABEL, name)
    # mig-parted uses the last of several entries for one GPU.
    for index, entry in enumerate(entries):
        # A claim can have the GPU instance of a compute instance.
        gpu_instances = (COMPUTE.sub("", each) for each in entry.profiles or ())
        profiles = None if entry.profiles is None else tuple(dict.fromkeys(gpu_instances))
        yield PolicyDraft(
            name=dns_name(dns_name(f"mig-{name}") + (f"-{index + 1}" if len(entries) > 1 else "")),
            priority=_LAYOUT_PRIORITY + (_DEFAULT_PRIORITY if everywhere else 2 * _NAMED_PRIORITY) + min(index, 9),
            nodes=nodes,
            label=f"{MIG_LABEL}={name}",
            minors=entry.minors,
            products=entry.products,
            profiles=() if profiles is None else profiles,
            layout=entry.profiles if entry.pinned else None,
            switches_mode=True,
            whole=profiles is None,
            hidden=profiles == (),
        )


def _joined(draft: PolicyDraft, shared: Sequence[PolicyDraft]) -> list[PolicyDraft]:
    """Return the draft, and a draft for each sharing config of some of its nodes; whole GPUs stay shared."""
    found = [draft]
    for config in shared:
        if not config.strategy or needs_names(config):
            continue
        if config.nodes is None:
            if not found[0].strategy:
                found[0] = replace(found[0], strategy=config.strategy, max_shares=config.max_shares)
        elif draft.nodes is None or set(config.nodes) & set(draft.nodes):
            nodes = config.nodes if draft.nodes is None else tuple(sorted(set(config.nodes) & set(draft.nodes)))
            name = dns_name(f"{draft.name}-{config.name}")
            joint = replace(draft, name=name, nodes=nodes, priority=draft.priority + _JOINED_PRIORITY)
            found.append(replace(joint, strategy=config.strategy, max_shares=config.max_shares))
    return found


def _object(draft: PolicyDraft) -> dict[str, object]:
    select: dict[str, object] = {}
    if draft.nodes is not None:
        # No node has such a name: the policy matches none until the user adds names.
        select["nodeNames"] = list(draft.nodes) or [f"NODES WITH {draft.label}"[:128]]
    if draft.minors is not None:
        select["minors"] = list(draft.minors)
    if draft.products:
        select["productNames"] = list(draft.products)
    spec: dict[str, object] = {"select": select} if select else {}
    if draft.priority:
        spec["priority"] = draft.priority
    if draft.hidden:
        spec["availability"] = "Hidden"
    elif draft.profiles is not None:
        profiles = {} if draft.layout else {"migProfiles": list(draft.profiles)}
        spec["forms"] = {**({} if draft.whole else {"whole": False}), **profiles}
        if draft.switches_mode:  # A100 and A30; newer GPUs switch without a reset
            counts = [{"profile": profile, "count": count} for profile, count in (draft.layout or {}).items()]
            spec["mig"] = {"mode": "WhenFree", **({"layout": counts} if counts else {})}
    if draft.strategy and not draft.hidden:
        # A pod with an extended resource gets one of the replicas. ``parts`` cannot have other numbers of them.
        share: dict[str, object] = {"defaultShare": {"parts": draft.max_shares}}
        if not 2 <= draft.max_shares <= names.ALL_PERCENT:
            share = {"defaultComputePercent": share_percent(draft.max_shares) if draft.strategy == "MPS" else 0}
        spec["sharing"] = {"strategy": draft.strategy, "maxShares": draft.max_shares, **share}
    return {"apiVersion": API, "kind": "GpuPolicy", "metadata": {"name": draft.name}, "spec": spec}

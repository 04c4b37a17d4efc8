"""GpuPolicies from device plugin configs and MIG layouts. Pure.

A policy applies alone, and of those that match a GPU the one of the highest priority: so where a layout leaves
GPUs whole that a config shares, their policies are joined.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.kube.published import names
from dra_driver.kube.published.device_classes import API_VERSION, MANAGED_BY, Offer, class_of
from dra_driver.kubectl.migrate.gfd_labels import DeviceForm
from dra_driver.kubectl.migrate.ledger import MIG_LABEL, PLUGIN_LABEL, Gathered, GpuLayout, PluginConfig
from dra_driver.kubectl.migrate.mig_parted import layout_policy_name
from dra_driver.kubectl.migrate.plugin_config import dns_name, policy_name
from dra_driver.kubectl.migrate.resources import (
    GPU,
    SHARED,
    KnownResources,
    MemoryKnowledge,
    ResourceMeaning,
    class_name,
    share_meaning,
)

MANAGER: Final = "dra-driver-migrate"


def known_resources(gathered: Gathered, driver: str) -> KnownResources:
    """What the names of resources mean under the gathered configurations.

    A resource that only some of several configs share is what the default config says, without one a whole GPU, unless
    a pod's labels say otherwise.
    """
    found: dict[str, ResourceMeaning] = {}
    # The default config comes first, and the first meaning of a name stays.
    configs = sorted(gathered.plugin_configs.values(), key=lambda config: config.name != gathered.default_config)
    everywhere = bool(configs) and (
        all(_shares_gpus(each) for each in configs)
        or (configs[0].name == gathered.default_config and _shares_gpus(configs[0]))
    )
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


def ambiguity(gathered: Gathered) -> str:
    """A sentence where ``nvidia.com/gpu`` is a share under some configs and a GPU under others; "" otherwise."""
    shared = sorted(name for name, config in gathered.plugin_configs.items() if _shares_gpus(config))
    whole = sorted(set(gathered.plugin_configs) - set(shared))
    if not shared or not whole:
        return ""
    chosen = "a share" if gathered.default_config in shared else "a whole GPU"
    return (
        f"nvidia.com/gpu is a share under the configs {', '.join(shared)} and a GPU under {', '.join(whole)}: pods"
        f" whose product label does not say which (-SHARED) became claims for {chosen}; look at each"
    )


def memory_of(gathered: Gathered, said_mib: int) -> MemoryKnowledge:
    """The memory of GPUs: as said, or the least of the nodes among the inputs."""
    labels = (found.get(f"{GPU}.memory", "") for found in gathered.node_labels.values())
    known = [int(value[:9]) for value in labels if value.isdigit()]
    return MemoryKnowledge(said_mib=said_mib, least_mib=min(known, default=0))


def classes(gathered: Gathered, asked_for: Iterable[str], driver: str) -> list[dict[str, object]]:
    """DeviceClasses for the profiles of layouts and of ``asked_for``, and for renamed resources.

    Those of profiles are the ones that `kubectl dra classes` keeps; the chart has the others.
    """
    profiles = {
        profile for layout in gathered.layouts.values() for entry in layout.entries for profile in entry.profiles or ()
    }
    made = [
        class_of(Offer(names.PROFILE, profile), driver)
        for profile in sorted(profiles | set(asked_for))
        if "c." not in profile
    ]
    return [*made, *(_renamed(*each, driver) for each in sorted(gathered.renamed.items()))]


def _shares_gpus(config: PluginConfig) -> bool:
    return any(each.name == GPU and each.replicas and not each.renamed for each in config.replicated)


def _single_profile(gathered: Gathered) -> str:
    """The profile of ``nvidia.com/gpu`` where every node has the MIG strategy ``single`` and one layout; else ""."""
    strategies = {config.mig_strategy for config in gathered.plugin_configs.values() if config.mig_strategy}
    layout = gathered.layouts.get(gathered.mig_default)
    if (strategies or {gathered.mig_strategy}) != {"single"} or layout is None:
        return ""
    found = {profile for entry in layout.entries for profile in entry.profiles or ("",)}
    return found.pop() if len(found) == 1 else ""


def _class_of_renamed(resource: str) -> str:
    return f"{dns_name(resource.partition('/')[2])}.nvidia.com"


def _renamed(resource: str, pattern: str, driver: str) -> dict[str, object]:
    """A class for whole GPUs whose product name matches a pattern of the plugin's field ``resources``."""
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
"""Added for layouts: whether a GPU is cut is stronger than how it is shared."""
_JOINED_PRIORITY: Final = 50


class PolicyDraft(Struct, frozen=True, kw_only=True):
    """A policy before it is written. ``nodes``: names, None for all nodes; ``label`` chose them before."""

    name: str
    priority: int
    nodes: tuple[str, ...] | None = None
    label: str = ""
    minors: tuple[int, ...] | None = None
    products: tuple[str, ...] = ()
    profiles: tuple[str, ...] | None = None
    whole: bool = True
    hidden: bool = False
    strategy: str = ""
    max_shares: int = 0


def drafts(gathered: Gathered) -> list[PolicyDraft]:
    """The policies of all configs and layouts, those of layouts joined with the sharing of the same nodes."""
    # The strategy of a ClusterPolicy or of the chart's values is for nodes without a config, too.
    configs = list(gathered.plugin_configs.values()) or [PluginConfig(name="")]
    shared = [draft for config in configs for draft in _of_config(config, gathered)]
    layouts = [
        draft for layout in gathered.layouts.values() for draft in _of_layout(layout.name, layout.entries, gathered)
    ]
    joined: list[PolicyDraft] = []
    for draft in layouts:
        joined += _joined(draft, shared) if draft.whole and not draft.hidden else [draft]
    return [*shared, *joined]


def objects(found: Sequence[PolicyDraft]) -> list[dict[str, object]]:
    """GpuPolicy objects with distinct names; those for many nodes are several."""
    taken: set[str] = set()
    made = []
    for draft in found:
        for nodes in _parts(draft.nodes):
            name = next(each for each in _names(draft.name) if each not in taken)
            taken.add(name)
            made.append(_object(replace(draft, name=name, nodes=nodes)))
    return made


def needs_names(draft: PolicyDraft) -> bool:
    """Whether the nodes of a policy are not known, so that it matches none until their names are written into it."""
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
    # Of several entries for one GPU the last one counts in mig-parted.
    for index, entry in enumerate(entries):
        profiles = None if entry.profiles is None else tuple(each for each in entry.profiles if "c." not in each)
        yield PolicyDraft(
            name=dns_name(layout_policy_name(name) + (f"-{index + 1}" if len(entries) > 1 else "")),
            priority=_LAYOUT_PRIORITY + (_DEFAULT_PRIORITY if everywhere else 2 * _NAMED_PRIORITY) + min(index, 9),
            nodes=nodes,
            label=f"{MIG_LABEL}={name}",
            minors=entry.minors,
            products=entry.products,
            profiles=() if profiles is None else profiles,
            whole=profiles is None,
            hidden=profiles == (),
        )


def _joined(draft: PolicyDraft, shared: Sequence[PolicyDraft]) -> list[PolicyDraft]:
    """The draft, and beside it one for each way of sharing of a part of its nodes; whole GPUs stay shared."""
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


def _parts(nodes: tuple[str, ...] | None) -> list[tuple[str, ...] | None]:
    """Nodes in groups of as many patterns as a policy has."""
    if not nodes:
        return [nodes]
    return [nodes[at : at + _MOST_PATTERNS] for at in range(0, len(nodes), _MOST_PATTERNS)]


def _names(base: str) -> Iterator[str]:
    yield base
    yield from (f"{base[:58].rstrip('-')}-{number}" for number in range(2, 1000))


def _object(draft: PolicyDraft) -> dict[str, object]:
    select: dict[str, object] = {}
    if draft.nodes is not None:
        # No node has such a name: until names are known, the policy is for none.
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
        spec["forms"] = {**({} if draft.whole else {"whole": False}), "migProfiles": list(draft.profiles)}
    if draft.strategy and not draft.hidden:
        spec["sharing"] = {"strategy": draft.strategy, "maxShares": draft.max_shares, "defaultComputePercent": 0}
    return {"apiVersion": API, "kind": "GpuPolicy", "metadata": {"name": draft.name}, "spec": spec}

"""What the gathered configurations say about resources and memory, and the DeviceClasses that follow. Pure."""

import re
from collections.abc import Iterable
from typing import Any, Final

from dra_driver.kube.published import names
from dra_driver.kube.published.device_classes import API_VERSION, MANAGED_BY, Offer, class_of
from dra_driver.kubectl.migrate.gathered import Gathered, PluginConfig
from dra_driver.kubectl.migrate.gfd_labels import DeviceForm
from dra_driver.kubectl.migrate.memory import MemoryKnowledge
from dra_driver.kubectl.migrate.plugin_config import dns_name
from dra_driver.kubectl.migrate.resources import GPU, SHARED, KnownResources, ResourceMeaning, class_name, share_meaning

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


def classes(gathered: Gathered, asked_for: Iterable[str], driver: str) -> list[dict[str, Any]]:
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


def _renamed(resource: str, pattern: str, driver: str) -> dict[str, Any]:
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

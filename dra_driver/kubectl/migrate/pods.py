"""One pod specification: extended resources become a claim, node labels become selectors of it. Pure.

A container's own devices stay its own: each container has its request in the pod's one claim. An init container that
ends before the others start used devices that the kubelet gave to the others afterwards (devicemanager, "reusable
devices"), so it names the request of one of them where that has at least as many devices of the same kind.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.kubectl.migrate import node_terms
from dra_driver.kubectl.migrate.claims import DeviceWish, TemplateBook
from dra_driver.kubectl.migrate.ledger import Ledger, Path, at, list_at, mapping_at
from dra_driver.kubectl.migrate.resources import KnownResources, MemoryKnowledge, NoDeviceError, amount

# --- What a pod says to NVIDIA's container runtime: RuntimeClass and environment.
#
# Devices of a claim come by CDI, which the container runtime itself applies, and which sets NVIDIA_VISIBLE_DEVICES=void
# so that NVIDIA's runtime, where it is the default, adds nothing. A value of the pod would be an offer to that runtime.

_RUNTIME_CLASSES: Final = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy"})
_ALL: Final = re.compile(r"all|[0-9,]+|GPU-.*")


def tidy(spec: dict[str, Any], with_devices: Collection[tuple[str, int]], base: Path, ledger: Ledger) -> None:
    """Removes what would make NVIDIA's runtime add devices; ``with_devices`` are containers by list and index."""
    name = spec.get("runtimeClassName")
    if name in _RUNTIME_CLASSES:
        del spec["runtimeClassName"]
        text = "removed: the container runtime itself applies CDI, and the RuntimeClass goes with NVIDIA's toolkit"
        ledger.changed((*base, "runtimeClassName"), text)
    for list_name, index in sorted(with_devices):
        container = spec[list_name][index]
        place = (*base, list_name, index, "env")
        kept = []
        for number, each in enumerate(list_at(container, "env")):
            if not _is_removed(each, (*place, number), ledger):
                kept.append(each)
        if "env" in container:
            container["env"] = kept
            if not kept:
                del container["env"]


def sees_all_gpus(spec: Mapping[str, Any], base: Path, ledger: Ledger) -> bool:
    """Notes containers that ask for no GPU and get all of them through NVIDIA's runtime; whether there are any."""
    found = False
    for list_name in ("containers", "initContainers"):
        for index, container in enumerate(list_at(spec, list_name)):
            for number, each in enumerate(list_at(container, "env")):
                if _variable_name(each) == "NVIDIA_VISIBLE_DEVICES" and _ALL.fullmatch(str(each.get("value") or "")):
                    found = True
                    ledger.lost(
                        (*base, list_name, index, "env", number),
                        "the container gets GPUs from NVIDIA's runtime without being allocated any; it stays as it is."
                        " A monitor can have a claim with adminAccess instead (examples/admin-access.yaml)",
                    )
    return found


def _is_removed(variable: Any, path: Path, ledger: Ledger) -> bool:
    name = _variable_name(variable)
    if name == "NVIDIA_VISIBLE_DEVICES":
        ledger.changed(path, "removed: the claim decides which GPUs the container sees")
        return True
    if name == "NVIDIA_DRIVER_CAPABILITIES":
        ledger.changed(path, "stays and has no effect: containers with a claim have all of the driver's libraries")
    if name.startswith("NVIDIA_REQUIRE_"):
        ledger.changed(path, "stays and has no effect: nothing compares it with the driver; a selector on"
                             " cudaDriverVersion or driverVersion would keep the pod off older drivers")  # fmt: skip
    return False


def _variable_name(variable: Any) -> str:
    name = variable.get("name") if isinstance(variable, Mapping) else None
    return name if isinstance(name, str) else ""


RESOURCE_PREFIX: Final = "nvidia.com/"
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_RESOURCES: Final = ("limits", "requests")
UNKNOWN_MEMORY: Final = (
    "the plugin's MPS gives each replica an equal part of the GPU's memory, which is not known here; say --gpu-memory,"
    " or add `kubectl get nodes -o yaml` to the inputs"
)


class PodOptions(Struct, frozen=True, kw_only=True):
    """``driver`` is the name of the DRA driver. ``keep``: pods that could go on unchanged are left as they are."""

    driver: str
    keep: bool
    resources: KnownResources
    memory: MemoryKnowledge


class _Ask(Struct, frozen=True, kw_only=True):
    """One resource of one container. ``reusable``: of an init container that ends before the others start."""

    list_name: str
    index: int
    container: str
    resource: str
    wish: DeviceWish
    parts: tuple[str, ...]
    reusable: bool


def asks_for_devices(spec: Mapping[str, Any], renamed: Mapping[str, Any]) -> bool:
    """Whether a container of the pod asks for a resource of NVIDIA's device plugin."""
    return any(True for _ in _resource_names(spec, renamed))


def obstacle(spec: Mapping[str, Any], options: PodOptions) -> str:
    """Why the pod cannot go on unchanged through classes with an extendedResourceName; "" if it can."""
    for name in _resource_names(spec, options.resources.of):
        try:
            meaning = options.resources.meaning(name, spec)
        except NoDeviceError as error:
            return str(error)
        if meaning.form.form == "share":
            return "a pod cannot say through an extended resource how much of a shared GPU it wants"
        if meaning.form.single:
            return f"{name} is a MIG device here, and a whole GPU to this driver's class"
    return ""


def profiles(spec: Mapping[str, Any], options: PodOptions) -> set[str]:
    """The MIG profiles that a pod asks for by extended resources, all of which have a meaning."""
    meanings = (options.resources.meaning(name, spec) for name in _resource_names(spec, options.resources.of))
    return {meaning.form.profile for meaning in meanings} - {""}


def translate(
    spec: dict[str, Any], base: Path, ledger: Ledger, *, namespace: str, options: PodOptions, book: TemplateBook
) -> bool:
    """Changes ``spec`` so that its containers have claims; notes each field. Returns whether it was changed."""
    asks = list(_asks(spec, base, options, ledger))
    if not asks:
        return False
    forms = list(dict.fromkeys(ask.wish.meaning.form for ask in asks))
    requests = _requests(asks)
    claim = _free_name(spec)
    several = len(set(requests.values())) > 1
    for ask, request in requests.items():
        container = spec[ask.list_name][ask.index]
        _give(container, ask.resource, {"name": claim, **({"request": request} if several else {})})
        later = next((each for each in requests if requests[each] == request and not each.reusable), None)
        _note(ask, request if several else "", claim, base, ledger, later=later)
    terms = node_terms.take(spec, forms, options.driver, ledger, base)
    wishes: dict[str, DeviceWish] = {}
    for ask, request in requests.items():  # the one with most devices is the first of a request
        wishes.setdefault(request if several else "gpu", ask.wish)
    name = book.template(namespace, wishes, terms, options.driver)
    spec.setdefault("resourceClaims", []).append({"name": claim, "resourceClaimTemplateName": name})
    tidy(spec, {(ask.list_name, ask.index) for ask in asks}, base, ledger)
    return True


def _asks(spec: Mapping[str, Any], base: Path, options: PodOptions, ledger: Ledger) -> Iterator[_Ask]:
    for list_name, index, container in _containers(spec):
        counts = _counts(container, options.resources.of)
        for resource, (value, paths) in counts.items():
            places = [(*base, list_name, index, *path) for path in paths]
            try:
                count = amount(value)
                if count == 0:
                    for place in places:
                        ledger.carried(place, "none was asked for")
                    _forget(container, resource)
                    continue
                wish = _wish(resource, count, spec, options)
            except NoDeviceError as error:
                for place in places:
                    ledger.lost(place, f"{error}; it stays as it is, and only a device plugin can fulfil it")
                continue
            yield _Ask(
                list_name=list_name,
                index=index,
                container=str(container.get("name") or index),
                resource=resource,
                wish=wish,
                parts=tuple(str(path[1]) for path in paths),
                reusable=list_name == "initContainers" and container.get("restartPolicy") != "Always",
            )


def _wish(resource: str, count: int, spec: Mapping[str, Any], options: PodOptions) -> DeviceWish:
    meaning = options.resources.meaning(resource, spec)
    if meaning.form.form != "share":
        return DeviceWish(meaning=meaning, count=count)
    if meaning.several_refused and count > 1:
        raise NoDeviceError("the device plugin refuses more than one replica (failRequestsGreaterThanOne)")
    if meaning.replicas and count > meaning.replicas:
        raise NoDeviceError(f"shares of one claim are of one GPU, which has {meaning.replicas} of them")
    memory = 0
    if meaning.strategy == "MPS":
        if not meaning.replicas:
            raise NoDeviceError("how many replicas share a GPU is not known; add the plugin's config to the inputs")
        memory = options.memory.of_pod(spec)
        if not memory:
            raise NoDeviceError(UNKNOWN_MEMORY)
    return DeviceWish(meaning=meaning, count=count, memory_mib=memory)


def _requests(asks: list[_Ask]) -> dict[_Ask, str]:
    """The request of each ask, of those with one request the largest first: an init container uses that of a later
    container, or of another init container, where it is enough."""
    found: dict[_Ask, str] = {}
    own = [ask for ask in asks if not ask.reusable]
    for ask in own:
        found[ask] = _request_name(ask, found)
    for ask in sorted((each for each in asks if each.reusable), key=lambda each: -each.wish.count):
        enough = [other for other in found if other.container != ask.container and _is_enough(other.wish, ask.wish)]
        least = min(enough, key=lambda other: other.wish.count, default=None)
        found[ask] = found[least] if least is not None else _request_name(ask, found)
    return found


def _is_enough(has: DeviceWish, wants: DeviceWish) -> bool:
    return has.count >= wants.count and replace(has, count=wants.count) == wants


def _request_name(ask: _Ask, taken: Mapping[_Ask, str]) -> str:
    base = ask.container if _LABEL.fullmatch(ask.container) else "gpu"
    names = set(taken.values())
    return next(name for name in (base, *(f"{base}-{number}" for number in range(2, 100))) if name not in names)


def _give(container: dict[str, Any], resource: str, claim: dict[str, str]) -> None:
    _forget(container, resource)
    claims = container.setdefault("resources", {}).setdefault("claims", [])
    if claim not in claims:
        claims.append(claim)


def _forget(container: dict[str, Any], resource: str) -> None:
    resources = container.get("resources") or {}
    for part in _RESOURCES:
        if isinstance(resources.get(part), dict):
            resources[part].pop(resource, None)
            if not resources[part]:
                del resources[part]


def _note(ask: _Ask, request: str, claim: str, base: Path, ledger: Ledger, *, later: _Ask | None) -> None:
    form, wish = ask.wish.meaning.form, ask.wish
    what = {
        "whole": "whole GPUs" if wish.count > 1 else "a whole GPU",
        "partition": f"MIG devices of profile {form.profile}" if wish.count > 1 else f"a MIG device {form.profile}",
        "share": f"{wish.count} shares of one GPU" if wish.count > 1 else "a share of a GPU",
    }[form.form]
    text = f"became a request for {what} in the claim {claim}{f', request {request}' if request else ''}"
    paths = [(*base, ask.list_name, ask.index, "resources", part, ask.resource) for part in ask.parts]
    for path in paths:
        if ask.reusable and later is not None and later.wish.count > wish.count:
            ledger.changed(
                path, f"uses the request of container {later.container}: it sees {later.wish.count}, not {wish.count}"
            )
        elif ask.reusable and later is None:
            ledger.changed(path, f"{text}, which the pod holds until it ends, not until the init container has ended")
        elif form.form == "share" and wish.meaning.strategy == "MPS":
            ledger.changed(path, f"{text}; memory and compute are limited for each process of the container")
        elif form.form == "share" and wish.count > 1:
            ledger.changed(path, f"{text}; the device plugin's replicas could be of several GPUs")
        else:
            ledger.carried(path, text)


def _counts(container: Mapping[str, Any], renamed: Mapping[str, Any]) -> dict[str, tuple[Any, list[Path]]]:
    """For each resource its amount, limits before requests, and the paths below the container."""
    found: dict[str, tuple[Any, list[Path]]] = {}
    for part in _RESOURCES:
        for name, value in mapping_at(container, "resources", part).items():
            if _is_device(name, renamed):
                kept, paths = found.get(name, (value, []))
                found[name] = (kept, [*paths, ("resources", part, name)])
    return found


def _resource_names(spec: Mapping[str, Any], renamed: Mapping[str, Any]) -> Iterator[str]:
    for _, _, container in _containers(spec):
        yield from _counts(container, renamed)


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for list_name in ("containers", "initContainers"):
        for index, container in enumerate(list_at(spec, list_name)):
            if isinstance(container, dict):
                yield list_name, index, container


def _is_device(name: str, renamed: Mapping[str, Any]) -> bool:
    return name.startswith((f"{RESOURCE_PREFIX}gpu", f"{RESOURCE_PREFIX}mig-")) or name in renamed


def _free_name(spec: Mapping[str, Any]) -> str:
    taken = {at(each, "name") for each in list_at(spec, "resourceClaims")}
    return next(name for name in ("gpu", *(f"gpu-{number}" for number in range(2, 100))) if name not in taken)

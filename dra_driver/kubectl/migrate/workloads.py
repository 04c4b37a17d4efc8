"""Translate pods in objects of any kind, ResourceQuotas and LimitRanges: extended resources become claims.

Each container has a request in its pod's claim. An init container that ends before the app containers start reuses
another container's request with enough devices, as the kubelet reused devices (devicemanager)."""

import copy
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.quantity import quantity_in
from dra_driver.kubectl.migrate.ledger import (
    CARRIED,
    UNCHANGED,
    FieldNote,
    InputDocument,
    Ledger,
    Path,
    at,
    children,
    list_at,
    list_in,
    mapping_at,
    text_at,
)
from dra_driver.kubectl.migrate.node_terms import NodeConditions
from dra_driver.kubectl.migrate.resources import (
    DeviceWish,
    KnownResources,
    MemoryKnowledge,
    NoDeviceError,
    TemplateBook,
    amount,
)

# --- Settings of a pod for NVIDIA's container runtime: RuntimeClass and environment.
#
# CDI sets NVIDIA_VISIBLE_DEVICES=void, so that NVIDIA's runtime adds no devices. A value of the pod would override it.

_RUNTIME_CLASSES: Final = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy"})
_ALL: Final = re.compile(r"all|[0-9,]+|GPU-.*")


def _tidy(spec: dict[str, object], with_devices: Collection[tuple[str, int]], base: Path, ledger: Ledger) -> None:
    if spec.get("runtimeClassName") in _RUNTIME_CLASSES:
        del spec["runtimeClassName"]
        text = "removed: the container runtime applies CDI without NVIDIA's RuntimeClass"
        ledger.changed((*base, "runtimeClassName"), text)
    for list_name, index in sorted(with_devices):
        container = mapping_at(spec, list_name, index)
        if "env" in container:
            place = (*base, list_name, index, "env")
            variables = enumerate(list_at(container, "env"))
            container["env"] = [each for number, each in variables if _stays(each, (*place, number), ledger)]
            if not container["env"]:
                del container["env"]


def _note_all_gpus(spec: object, base: Path, ledger: Ledger) -> None:
    for list_name, index, container in _containers(spec):
        for number, each in enumerate(list_at(container, "env")):
            if text_at(each, "name") == "NVIDIA_VISIBLE_DEVICES" and _ALL.fullmatch(str(at(each, "value") or "")):
                ledger.lost(
                    (*base, list_name, index, "env", number),
                    "unchanged: NVIDIA's runtime injects GPUs without an allocation. Monitors can use a claim with"
                    " adminAccess (examples/admin-access.yaml)",
                )


def _stays(variable: object, path: Path, ledger: Ledger) -> bool:
    name = text_at(variable, "name")
    if name == "NVIDIA_VISIBLE_DEVICES":
        ledger.changed(path, "removed: the claim selects the visible GPUs")
        return False
    if name == "NVIDIA_DRIVER_CAPABILITIES":
        ledger.changed(path, "unchanged, without effect: containers with a claim get all driver libraries")
    if name.startswith("NVIDIA_REQUIRE_"):
        ledger.changed(path, "unchanged, without effect; to exclude older drivers, add a selector on"
                             " cudaDriverVersion or driverVersion")  # fmt: skip
    return True


RESOURCE_PREFIX: Final = "nvidia.com/"
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?")
_RESOURCES: Final = ("limits", "requests")
UNKNOWN_MEMORY: Final = (
    "unknown GPU memory, of which each MPS replica gets an equal part; set --gpu-memory, or add"
    " `kubectl get nodes -o yaml` to the inputs"
)


_NO_LIMIT: Final = "Neither time-sliced replicas nor shares limit memory"


class PodOptions(Struct, frozen=True, kw_only=True):
    """``keep``: do not change pods that can run unchanged."""

    keep: bool
    resources: KnownResources
    memory: MemoryKnowledge


class _Ask(Struct, frozen=True, kw_only=True):
    """One resource of one container. ``reusable``: of an init container that is not a sidecar."""

    list_name: str
    index: int
    container: str
    resource: str
    wish: DeviceWish
    parts: tuple[str, ...]
    reusable: bool


def _resource_names(spec: object, known: KnownResources) -> set[str]:
    return {name for _, _, container in _containers(spec) for name in _counts(container, known)}


def _can_stay(spec: object, options: PodOptions) -> bool:
    """Return whether classes with an extendedResourceName can serve the pod: no shares or renamed partitions."""
    if any(
        _refused(container, name)
        for _, _, container in _containers(spec)
        for name in _counts(container, options.resources)
    ):
        return False
    try:
        meanings = [options.resources.meaning(name, spec) for name in _resource_names(spec, options.resources)]
    except NoDeviceError:
        return False
    return not any(meaning.form.form == "share" or meaning.form.single for meaning in meanings)


def _translate_pod(
    spec: dict[str, object], base: Path, ledger: Ledger, *, namespace: str, options: PodOptions, book: TemplateBook
) -> bool:
    """Add claims to the containers of ``spec``; note each field. Return whether it changed."""
    asks = list(_asks(spec, base, options, ledger))
    if not asks:
        return False
    forms = list(dict.fromkeys(ask.wish.meaning.form for ask in asks))
    requests = _requests(asks)
    claim = _free("gpu", {text_at(each, "name") for each in list_at(spec, "resourceClaims")})
    several = len(set(requests.values())) > 1
    for ask, request in requests.items():
        container = mapping_at(spec, ask.list_name, ask.index)
        _forget(container, ask.resource)
        use = {"name": claim, **({"request": request} if several else {})}
        claims = list_in(mapping_at(container, "resources"), "claims")
        if use not in claims:
            claims.append(use)
        later = next((each for each in requests if requests[each] == request and not each.reusable), None)
        _note(ask, request if several else "", claim, base, ledger, later=later)
    terms = NodeConditions(spec, forms, options.resources.driver, ledger, base).take()
    wishes: dict[str, DeviceWish] = {}
    for ask, request in requests.items():  # the largest wish of a request comes first
        wishes.setdefault(request if several else "gpu", ask.wish)
    name = book.template(namespace, wishes, terms, options.resources.driver)
    list_in(spec, "resourceClaims").append({"name": claim, "resourceClaimTemplateName": name})
    _tidy(spec, {(ask.list_name, ask.index) for ask in asks}, base, ledger)
    return True


def _asks(spec: dict[str, object], base: Path, options: PodOptions, ledger: Ledger) -> Iterator[_Ask]:
    for list_name, index, container in _containers(spec):
        for resource, (value, paths) in _counts(container, options.resources).items():
            places = [(*base, list_name, index, *path) for path in paths]
            if problem := _refused(container, resource):
                for place in places:
                    ledger.lost(place, problem)
                continue
            try:
                count = amount(value)
                if count == 0:
                    for place in places:
                        ledger.carried(place, "no devices requested")
                    _forget(container, resource)
                    continue
                wish = _wish(resource, count, spec, options)
            except NoDeviceError as error:
                for place in places:
                    ledger.lost(place, f"{error}; unchanged: needs a device plugin")
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


def _refused(container: object, resource: str) -> str:
    """Return why the API server rejects the amounts: a request of an extended resource needs an equal limit
    (core/validation, ValidateContainerResourceRequirements)."""
    requests, limits = (mapping_at(container, "resources", part) for part in ("requests", "limits"))
    if resource not in requests:
        return ""
    if resource not in limits:
        found = "has no limit"
    elif _same(requests[resource], limits[resource]):
        return ""
    else:
        found = f"is not its limit of {str(limits[resource])[:40]}"
    return f"invalid: the request {found}: the API server rejects the pod. Set limits and requests to the same number"


def _same(one: object, other: object) -> bool:
    left, right = quantity_in(one), quantity_in(other)
    return str(one) == str(other) if left is None or right is None else left.as_int() == right.as_int()


def _wish(resource: str, count: int, spec: object, options: PodOptions) -> DeviceWish:
    meaning = options.resources.meaning(resource, spec)
    if meaning.form.form != "share":
        return DeviceWish(meaning=meaning, count=count)
    if meaning.several_refused and count > 1:
        raise NoDeviceError("the device plugin allows one replica (failRequestsGreaterThanOne)")
    if meaning.replicas and count > meaning.replicas:
        raise NoDeviceError(f"a claim's shares are on one GPU, which has {meaning.replicas} shares")
    memory = 0
    if meaning.strategy == "MPS":
        if not meaning.replicas:
            raise NoDeviceError("unknown number of replicas per GPU; add the plugin's config to the inputs")
        memory = options.memory.of_pod(spec)
        if not memory:
            raise NoDeviceError(UNKNOWN_MEMORY)
    return DeviceWish(meaning=meaning, count=count, memory_mib=memory)


def _requests(asks: list[_Ask]) -> dict[_Ask, str]:
    """Return the request of each ask, largest first per request; init containers reuse a sufficient request."""
    found: dict[_Ask, str] = {}
    for ask in (each for each in asks if not each.reusable):
        found[ask] = _request_name(ask, found)
    for ask in sorted((each for each in asks if each.reusable), key=lambda each: -each.wish.count):
        enough = [
            other
            for other in found
            if other.container != ask.container
            and other.wish.count >= ask.wish.count
            and replace(other.wish, count=ask.wish.count) == ask.wish
        ]
        least = min(enough, key=lambda other: other.wish.count, default=None)
        found[ask] = found[least] if least is not None else _request_name(ask, found)
    return found


def _request_name(ask: _Ask, taken: Mapping[_Ask, str]) -> str:
    return _free(ask.container if _LABEL.fullmatch(ask.container) else "gpu", taken.values())


def _free(base: str, taken: Collection[str]) -> str:
    return next(name for name in (base, *(f"{base}-{number}" for number in range(2, 100))) if name not in taken)


def _forget(container: object, resource: str) -> None:
    resources = mapping_at(container, "resources")
    for part in _RESOURCES:
        if isinstance(amounts := resources.get(part), dict):
            amounts.pop(resource, None)
            if not amounts:
                del resources[part]


def _note(ask: _Ask, request: str, claim: str, base: Path, ledger: Ledger, *, later: _Ask | None) -> None:
    form, wish = ask.wish.meaning.form, ask.wish
    what = {
        "whole": "whole GPUs" if wish.count > 1 else "a whole GPU",
        "partition": f"MIG devices of profile {form.profile}" if wish.count > 1 else f"a MIG device {form.profile}",
        "share": f"{wish.count} shares of one GPU" if wish.count > 1 else "a share of a GPU",
    }[form.form]
    text = f"became a request for {what} in the claim {claim}{f', request {request}' if request else ''}"
    for part in ask.parts:
        path = (*base, ask.list_name, ask.index, "resources", part, ask.resource)
        if ask.reusable and later is not None and later.wish.count > wish.count:
            ledger.changed(
                path,
                f"uses the request of container {later.container}: it sees {later.wish.count} instead of {wish.count}",
            )
        elif ask.reusable and later is None:
            ledger.changed(path, f"{text}, held until the pod ends, not until the init container ends")
        elif form.form == "share" and wish.meaning.strategy == "MPS":
            ledger.changed(path, f"{text}; memory and compute limits apply to each process")
        elif form.form == "share" and wish.count > 1:
            ledger.changed(path, f"{text}; the device plugin's replicas could be on several GPUs. {_NO_LIMIT}")
        elif form.form == "share":
            ledger.carried(path, f"{text}. {_NO_LIMIT}")
        else:
            ledger.carried(path, text)


def _counts(container: object, known: KnownResources) -> dict[str, tuple[object, list[Path]]]:
    """Return for each resource its amount, limits before requests, and the paths below the container."""
    found: dict[str, tuple[object, list[Path]]] = {}
    for part in _RESOURCES:
        for name, value in mapping_at(container, "resources", part).items():
            if name.startswith((f"{RESOURCE_PREFIX}gpu", f"{RESOURCE_PREFIX}mig-")) or name in known.of:
                kept, paths = found.get(name, (value, []))
                found[name] = (kept, [*paths, ("resources", part, name)])
    return found


def _containers(spec: object) -> Iterator[tuple[str, int, dict[str, object]]]:
    for list_name in ("containers", "initContainers"):
        for index, container in enumerate(list_at(spec, list_name)):
            if isinstance(container, dict):
                yield list_name, index, container


_SEARCHED: Final = 20_000
_SERVER_SET: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_JOB_LABELS: Final = {
    f"{prefix}{name}" for prefix in ("", "batch.kubernetes.io/") for name in ("controller-uid", "job-name")
}


class TranslatedObject(Struct, frozen=True, kw_only=True):
    """``value`` is None if unchanged. ``can_stay``: classes with an extended resource could serve it."""

    value: dict[str, object] | None = None
    notes: tuple[FieldNote, ...]
    can_stay: bool = False


def pod_specs(value: object) -> Iterator[tuple[Path, dict[str, object]]]:
    """Yield each mapping with a list ``containers``, with its path."""
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
        if _resource_names(spec, options.resources):
            asking.append((path, spec))
        else:
            _note_all_gpus(spec, path, ledger)
    can_stay = bool(asking) and all(_can_stay(spec, options) for _, spec in asking)
    if options.keep and can_stay:
        for path, spec in asking:
            known = _resource_names(spec, options.resources)
            book.profiles |= {options.resources.meaning(name, spec).form.profile for name in known} - {""}
            ledger.carried(path, "unchanged: this driver's classes have its extended resources")
        return TranslatedObject(notes=ledger.close(CARRIED, UNCHANGED), can_stay=True)
    changed = False
    for path, spec in asking:
        changed |= _translate_pod(spec, path, ledger, namespace=document.namespace, options=options, book=book)
    if changed and document.kind in ("Pod", "Job"):
        owner = "a pod's containers" if document.kind == "Pod" else "a Job's pods"
        ledger.changed(("kind",), f"{owner} cannot be changed: delete it first")
    return _finished(value, ledger, changed=changed, can_stay=can_stay)


def _finished(value: dict[str, object], ledger: Ledger, *, changed: bool, can_stay: bool = False) -> TranslatedObject:
    if not changed:
        return TranslatedObject(notes=ledger.close(CARRIED, UNCHANGED))
    _forget_server_fields(value, ledger)
    return TranslatedObject(value=value, notes=ledger.close(CARRIED, UNCHANGED), can_stay=can_stay)


def _forget_server_fields(value: dict[str, object], ledger: Ledger) -> None:
    text = "removed: the API server sets it"
    metadata, annotations = mapping_at(value, "metadata"), mapping_at(value, "metadata", "annotations")
    for key in _SERVER_SET:
        if metadata.pop(key, None) is not None:
            ledger.carried(("metadata", key), text)
    if annotations.pop(_APPLIED, None) is not None:
        ledger.carried(("metadata", "annotations", _APPLIED), "removed: kubectl sets it")
        if not annotations:
            del metadata["annotations"]
    if "status" in value:
        del value["status"]
        ledger.carried(("status",), text)
    spec = mapping_at(value, "spec")
    if value.get("kind") == "Job" and "selector" in spec and not spec.get("manualSelector"):
        # The API server creates a Job's selector from its UID, and rejects other selectors.
        text = "removed: the API server creates it for each Job"
        del spec["selector"]
        ledger.carried(("spec", "selector"), text)
        for base in (("metadata", "labels"), ("spec", "template", "metadata", "labels")):
            labels = mapping_at(value, *base)
            for key in sorted(_JOB_LABELS & labels.keys()):
                del labels[key]
                ledger.carried((*base, key), text)


# A quota for claims counts devices by class: <class>.deviceclass.resource.k8s.io/devices (core/v1, quotas).
_SUFFIX: Final = "deviceclass.resource.k8s.io/devices"
_PARTS: Final = ("default", "defaultRequest", "max", "min", "maxLimitRequestRatio")
_BOTH: Final = "the line is kept for unmigrated pods; remove it at the end, since a namespace can use both"


def translate_quota(document: InputDocument, known: KnownResources) -> TranslatedObject:
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
            ledger.lost(path, f"{error}; the line is kept")
            continue
        line = f"{meaning.device_class}.{_SUFFIX}"
        if meaning.form.form == "share" and line in hard:
            ledger.changed(path, f"{line} counts whole GPUs and shares; {_BOTH}")
            continue
        hard[line] = str(limit)
        changed = True
        text = f"the same number of devices for claims: {line}; {_BOTH}"
        ledger.changed(
            path, f"{text}. Shares and whole GPUs count equally" if meaning.form.form != "partition" else text
        )
    return _finished(value, ledger, changed=changed)


def translate_limit_range(document: InputDocument, known: KnownResources) -> TranslatedObject:
    """Remove the resources: a default would add a GPU to every container with a claim."""
    ledger, value, changed = Ledger(document), copy.deepcopy(mapping_at(document.value)), False
    for index, limits in enumerate(list_at(value, "spec", "limits")):
        for part in _PARTS:
            resources = mapping_at(limits, part)
            for name in [each for each in resources if each.startswith(RESOURCE_PREFIX) or each in known.of]:
                del resources[name]
                changed = True
                text = "namespaces cannot set limits or defaults for claims"
                if part.startswith("default"):
                    text += "; it would add a GPU to every container with a claim"
                ledger.lost(("spec", "limits", index, part, name), f"{text}; removed")
            if at(limits, part) == {}:
                del mapping_at(limits)[part]
    return _finished(value, ledger, changed=changed)

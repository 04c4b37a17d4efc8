"""Resolve extended resources such as nvidia.com/gpu, and create the ResourceClaimTemplates that replace them."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.model.mig import no_compute_instance
from dra_driver.core.quantity import Quantity
from dra_driver.hardware.gpu import catalog
from dra_driver.kube.published import names
from dra_driver.kube.published.device_classes import Offer, class_of
from dra_driver.kubectl.migrate.gfd_labels import DeviceForm, plus, product_label, sanitised
from dra_driver.kubectl.migrate.ledger import at, list_at, mapping_at, text_at
from dra_driver.kubectl.migrate.node_terms import NodeTerms

GPU: Final = "nvidia.com/gpu"
SHARED: Final = ".shared"
MOST: Final = 32
"""Maximum devices of a claim (resource/v1 types.go, AllocationResultsMaxSize)."""
_PROFILE: Final = re.compile(r"nvidia\.com/mig-([0-9]+g\.[0-9]+gb(?:[.-][a-z.]+)?)")


class NoDeviceError(Exception):
    """This driver has no equivalent device for the resource; the message is the reason."""


class ResourceMeaning(Struct, frozen=True, kw_only=True):
    """Meaning of one unit of a resource. ``strategy`` and ``replicas`` (units per GPU) apply to shares."""

    form: DeviceForm
    device_class: str
    strategy: str = ""
    replicas: int = 0
    several_refused: bool = False
    selector: str = ""


class KnownResources(Struct, frozen=True, kw_only=True):
    """Resources that the configurations among the inputs share or rename (``of``), by name."""

    driver: str
    of: Mapping[str, ResourceMeaning] = field(default_factory=dict)

    def meaning(self, resource: str, spec: object) -> ResourceMeaning:
        """Return the meaning of ``resource`` for a pod; labels in ``spec`` take precedence. Raises NoDeviceError."""
        said = said_by_labels(spec)
        base = resource.removesuffix(SHARED)
        if resource.startswith(f"{GPU[:-3]}mig-"):
            return self._partition(resource)
        known = self.of.get(resource)
        if base != GPU and known is None:
            raise NoDeviceError(f"{resource} is not a resource for whole GPUs, MIG devices or GPU shares")
        if said is not None and said.profile and resource == GPU:
            return replace(partition_meaning(said.profile, self.driver), form=replace(said, single=True))
        if resource.endswith(SHARED) or (said is not None and said.form == "share"):
            mps = at(spec, "nodeSelector", f"{GPU}.sharing-strategy") == "mps"
            return known if known is not None and known.strategy else share_meaning("MPS" if mps else "TimeSlicing", 0)
        return known or ResourceMeaning(form=DeviceForm(), device_class=f"{names.TYPE_GPU}.nvidia.com")

    def _partition(self, resource: str) -> ResourceMeaning:
        if resource.endswith(SHARED):
            raise NoDeviceError("shares of MIG devices need a claim (sharing.migDevices of a GpuPolicy); or use a claim"
                                " for a smaller profile")  # fmt: skip
        if refused := no_compute_instance(resource):
            raise NoDeviceError(refused)
        found = _PROFILE.fullmatch(resource)
        if found is None:
            raise NoDeviceError(f"{resource} does not name a MIG profile")
        return partition_meaning(plus(found[1]), self.driver)


def share_meaning(strategy: str, replicas: int, *, several_refused: bool = False) -> ResourceMeaning:
    meaning = ResourceMeaning(form=DeviceForm(form="share"), device_class="gpu.nvidia.com", strategy=strategy)
    return replace(meaning, replicas=replicas, several_refused=several_refused)


def partition_meaning(profile: str, driver: str) -> ResourceMeaning:
    return ResourceMeaning(form=DeviceForm(form="partition", profile=profile), device_class=class_name(profile, driver))


def class_name(profile: str, driver: str) -> str:
    return str(class_of(Offer(names.PROFILE, profile), driver)["metadata"]["name"])


def said_by_labels(spec: object) -> DeviceForm | None:
    """Return the form in the suffix of a pod's product labels; None without exactly one form."""
    said = set()
    for key, value in _required_labels(spec):
        if key == f"{GPU}.product":
            parts = product_label(value)
            form = "partition" if parts.profile else "share" if parts.shared else "whole"
            said.add(DeviceForm(form=form, profile=parts.profile))
        elif key == f"{GPU}.sharing-strategy" and value in {"mps", "time-slicing"}:
            said.add(DeviceForm(form="share"))
    return said.pop() if len(said) == 1 else None


def _required_labels(spec: object) -> Iterable[tuple[str, str]]:
    yield from ((key, str(value)) for key, value in mapping_at(spec, "nodeSelector").items())
    required = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    for term in list_at(spec, *required):
        for each in list_at(term, "matchExpressions"):
            if at(each, "operator") == "In":
                yield from ((str(at(each, "key")), str(value)) for value in list_at(each, "values"))


def amount(value: object) -> int:
    """Return the number of devices. Raises NoDeviceError unless it is an integer from 0 to 32."""
    try:
        found = Quantity.parse(str(value)).as_int()
    except ValueError as error:
        hint = "; render the template first" if "{{" in str(value) else ""
        raise NoDeviceError(f"expected an integer number of devices, got {str(value)[:40]!r}{hint}") from error
    if not 0 <= found <= MOST:
        raise NoDeviceError(f"a claim has at most {MOST} devices, got {found}")
    return found


_MPS_SERVER_MIB: Final = 64
_PERCENT, _LEAST_MIB, _MOST_MIB = 3, 256, 1024
"""Estimate of the NVIDIA driver's reserve, as in ``kube/published/shares.py``."""


class MemoryKnowledge(Struct, frozen=True, kw_only=True):
    """Memory of a GPU: ``said_mib`` from the user (0 if unset), ``least_mib`` of the input nodes."""

    said_mib: int = 0
    least_mib: int = 0

    def of_pod(self, spec: object) -> int:
        """Return the MiB of all shares of one GPU; 0 if unknown."""
        total = self.said_mib or _of_labels(mapping_at(spec, "nodeSelector")) or self.least_mib
        return shareable(total) if total else 0


def shareable(total_mib: int) -> int:
    """Return the published part of ``total_mib`` with MPS if the driver reports no reserve."""
    reserve = min(max(total_mib * _PERCENT // 100, _LEAST_MIB), _MOST_MIB) + _MPS_SERVER_MIB
    return max(2, total_mib - min(reserve, total_mib // 2))


def _of_labels(labels: Mapping[str, object]) -> int:
    memory = str(labels.get("nvidia.com/gpu.memory", ""))
    if memory.isdigit():
        return int(memory[:9])
    name = product_label(str(labels.get("nvidia.com/gpu.product", ""))).name
    found = [model.memory_mib or 0 for model in catalog.models().values() if sanitised(model.product_name) == name]
    return min(found, default=0)


API: Final = "resource.k8s.io/v1"
_MAX_SELECTORS: Final = 32


class DeviceWish(Struct, frozen=True, kw_only=True):
    """``count`` units of a resource for one request; for shares, ``memory_mib`` of the whole GPU."""

    meaning: ResourceMeaning
    count: int
    memory_mib: int = 0

    @property
    def words(self) -> str:
        """``gpu``, ``gpu-x2``, ``mig-1g.10gb``, ``gpu-share``: for names of templates."""
        profile = self.meaning.form.profile.replace("+", ".")
        word = {"partition": f"mig-{profile}", "share": "gpu-share", "whole": "gpu"}[self.meaning.form.form]
        return f"{word}-x{self.count}" if self.count > 1 else word


class TemplateBook(Struct):
    """Created templates, by namespace and content, and the requested MIG profiles."""

    profiles: set[str] = field(default_factory=set)
    _made: dict[tuple[str, str], dict[str, object]] = field(default_factory=dict)

    def template(self, namespace: str, wishes: dict[str, DeviceWish], terms: NodeTerms, driver: str) -> str:
        """Return the name of the template with one request for each of ``wishes``; creates it if missing."""
        requests = [request(name, wish, terms, driver) for name, wish in wishes.items()]
        self.profiles |= {wish.meaning.form.profile for wish in wishes.values()} - {""}
        key = (namespace, json.dumps(requests, sort_keys=True))
        if key not in self._made:
            name = _name(list(wishes.values()), requests)
            metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
            spec = {"spec": {"devices": {"requests": requests}}}
            self._made[key] = {"apiVersion": API, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": spec}
        return text_at(self._made[key], "metadata", "name")

    @property
    def templates(self) -> list[dict[str, object]]:
        return list(self._made.values())


def request(name: str, wish: DeviceWish, terms: NodeTerms, driver: str) -> dict[str, object]:
    """Return one request of a claim; preferred conditions become alternatives in their order."""
    form = wish.meaning.form
    required = [*_inherent(wish.meaning, driver), *terms.required.get(form, ())]
    preferred = [each for each in terms.preferred.get(form, ()) if each]
    plain = _exactly(wish, required)
    if not preferred:
        return {"name": name, "exactly": plain}
    several = len(preferred) > 1
    alternatives = [
        {"name": f"preferred-{number}" if several else "preferred", **_exactly(wish, [*required, each])}
        for number, each in enumerate(preferred, start=1)
    ]
    return {"name": name, "firstAvailable": [*alternatives, {"name": "any", **plain}]}


def share_percent(replicas: int, count: int = 1) -> int:
    """Return the compute percent of ``count`` of the equal parts of the device plugin's MPS clients, at least 1."""
    return max(1, names.ALL_PERCENT * count // max(1, replicas))


def share_amounts(wish: DeviceWish) -> dict[str, str]:
    """Return the consumption of a share, equivalent to the device plugin's replicas.

    Time-slicing replicas have no memory: a share requests the minimum, and the policy's ``maxShares`` limits their
    number. A client of the plugin's MPS has an equal part of memory and compute.
    """
    amounts = {names.MEMORY: "1Mi"}
    if wish.meaning.strategy == "MPS":
        parts = max(1, wish.meaning.replicas)
        amounts = {
            names.MEMORY: f"{max(1, wish.memory_mib * wish.count // parts)}Mi",
            names.COMPUTE_PERCENT: str(share_percent(parts, wish.count)),
        }
    return {**amounts, **({names.SHARES: str(wish.count)} if wish.count > 1 else {})}


def _exactly(wish: DeviceWish, conditions: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {"deviceClassName": wish.meaning.device_class}
    if conditions:
        kept = list(conditions[: _MAX_SELECTORS - 1])
        if conditions[_MAX_SELECTORS - 1 :]:
            kept.append(" && ".join(f"({each})" for each in conditions[_MAX_SELECTORS - 1 :]))
        found["selectors"] = [{"cel": {"expression": each}} for each in kept]
    if wish.meaning.form.form == "share":
        found["capacity"] = {"requests": share_amounts(wish)}
    elif wish.count > 1:
        found["count"] = wish.count
    return found


def _inherent(meaning: ResourceMeaning, driver: str) -> list[str]:
    """Return the implied conditions: a share requires a shared GPU."""
    if meaning.selector:
        return [meaning.selector]
    if meaning.form.form != "share":
        return []
    attributes = f'device.attributes["{driver}"]'
    strategy = f'{attributes}.{names.SHARING_STRATEGY} == "{meaning.strategy}"'
    return [f'"{names.SHARING_STRATEGY}" in {attributes} && {strategy}']


def _name(wishes: Sequence[DeviceWish], requests: Sequence[dict[str, object]]) -> str:
    """Return the words if they are unambiguous; otherwise append a stable part of the content's hash."""
    first = wishes[0]
    words = first.words if len(wishes) == 1 else f"gpus-{len(wishes)}"
    if len(wishes) == 1 and "exactly" in requests[0] and first.meaning.strategy != "MPS" and not first.meaning.selector:
        selectors = list_at(requests[0], "exactly", "selectors")
        if len(selectors) == (1 if first.meaning.form.form == "share" else 0):
            return words
    digest = hashlib.sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()[:6]
    return f"{words}-{digest}"

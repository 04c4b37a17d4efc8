"""Objects for Kueue 0.19 from published devices: deviceClassMappings, classes, a flavor and queues with quotas.

Kueue charges a request for the largest device of the cluster that its class and selector match, so each model of GPU
has its own classes and quotas. Models with MIG placements have two quotas, memory and the counter that admits the
fewest of the smallest profile: memory alone admits more than fits. Tainted GPUs add nothing to quotas.

Sources: kubernetes-sigs/kueue pkg/config/validation.go, pkg/dra/{claims,counters,capacity}.go, keps/2941-DRA.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml
from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.quantity import Format, Quantity
from dra_driver.core.text import listed
from dra_driver.kube.devices import Wire, newest_slices
from dra_driver.kube.published import MEMORY, names
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.capacity.units import is_tainted, kind_of
from dra_driver.scheduler.allocation import nano

QUEUE: Final = "gpus"
"""The name of the ResourceFlavor, the ClusterQueue and each LocalQueue."""
_GATE: Final = "KueueDRAIntegrationConsumableCapacity"
_WORD: Final = re.compile(r"[^a-z0-9]+")
_MAX_SLUG: Final = 40  # the names of quotas have at most 63 characters


class ModelStock(Struct, kw_only=True):
    """The GPUs of one model, in billionths: sums of ``counters`` and of shareable ``capacity``; ``costs`` of a MIG
    device by profile and counter, only counters that all placements consume. Tainted GPUs add 0 to the sums, and count
    in ``all_counters`` and ``all_whole``, so that a drain does not change the mappings."""

    product: str
    whole: int = 0
    all_whole: int = 0
    tainted: int = 0
    counters: Counter[str] = field(default_factory=Counter)
    all_counters: Counter[str] = field(default_factory=Counter)
    capacity: Counter[str] = field(default_factory=Counter)
    costs: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def slot_counter(self) -> str:
        """Return the counter besides memory that admits the fewest of the smallest profile; "" without one."""
        if not self.costs:
            return ""
        smallest = min(self.costs.values(), key=lambda cost: cost.get(MEMORY, 0))
        admits = {name: self.all_counters[name] // cost for name, cost in smallest.items() if name != MEMORY and cost}
        return min(admits, key=lambda name: (admits[name], name), default="")


def stocks_of(slices: Iterable[Wire], driver: str) -> list[ModelStock]:
    """Return the stock of each model in the complete pools of the driver. Raises ValueError for invalid quantities."""
    pools: dict[str, list[Wire]] = {}
    for item in newest_slices(slices):
        if item["spec"]["driver"] == driver:
            pools.setdefault(item["spec"]["pool"]["name"], []).append(item["spec"])
    found: dict[str, ModelStock] = {}
    for specs in pools.values():
        if len(specs) >= max(spec["pool"]["resourceSliceCount"] for spec in specs):
            _add_pool(found, specs, driver)
    return [found[name] for name in sorted(found)]


def _add_pool(found: dict[str, ModelStock], specs: Sequence[Wire], driver: str) -> None:
    sets = {entry["name"]: entry for spec in specs for entry in spec.get("sharedCounters") or ()}
    owners: dict[str, tuple[ModelStock, bool]] = {}
    for device in (device for spec in specs for device in spec.get("devices") or ()):
        kind, tainted = kind_of(device, driver, shares=True), is_tainted(device)
        if kind.type not in ("gpu", names.TYPE_MIG):
            continue
        stock = found.setdefault(kind.model, ModelStock(product=kind.model))
        consumed = device.get("consumesCounters") or ()
        for entry in consumed:
            owners[entry["counterSet"]] = stock, tainted or owners.get(entry["counterSet"], (stock, False))[1]
        if kind.profile:
            cost = {name: nano(c["value"]) for entry in consumed for name, c in (entry.get("counters") or {}).items()}
            known = stock.costs.setdefault(kind.profile, cost)
            stock.costs[kind.profile] = {name: max(value, cost[name]) for name, value in known.items() if name in cost}
            continue
        stock.tainted += tainted
        if kind.shared:
            stock.capacity.update(_amounts(device.get("capacity"), tainted))
        else:
            stock.whole += not tainted
            stock.all_whole += 1
    for name, (stock, tainted) in owners.items():
        if name in sets:
            stock.counters.update(_amounts(sets[name].get("counters"), tainted))
            stock.all_counters.update(_amounts(sets[name].get("counters")))


def _amounts(entries: Wire | None, tainted: bool = False) -> dict[str, int]:
    return {name: 0 if tainted else nano(entry["value"]) for name, entry in (entries or {}).items()}


class Quota(Struct, frozen=True, kw_only=True):
    """A quota of Kueue: a deviceClassMapping and its amount. ``counter`` and ``capacity`` are "" for a number of
    devices."""

    name: str
    classes: Sequence[str]
    amount: str
    selector: str = ""
    counter: str = ""
    capacity: str = ""

    def mapping(self, driver: str) -> dict[str, object]:
        found: dict[str, object] = {"name": self.name, "deviceClassNames": [*self.classes]}
        for kind, name in (("counter", self.counter), ("capacity", self.capacity)):
            if name:
                select = {"cel": {"expression": self.selector}}
                found["sources"] = [{kind: {"name": name, "driver": driver, "deviceSelector": select}}]
        return found


def quotas_of(stock: ModelStock, driver: str) -> list[Quota]:
    """Return the quotas of a model: GPUs and MIG devices by counters, or GPUs by number; shares by memory."""
    slug = _slug(stock.product)
    prefix, select = f"{driver}/{slug}", _selector(stock, driver)
    found = []
    if stock.costs:
        classes = (f"{slug}.gpu.nvidia.com", f"{slug}.mig.nvidia.com")
        for counter in filter(None, (MEMORY, stock.slot_counter)):
            amount = _amount(stock.counters[counter], counter)
            name = f"{prefix}-{counter}"
            found.append(Quota(name=name, classes=classes, amount=amount, selector=select, counter=counter))
    elif stock.all_whole:
        found.append(Quota(name=f"{prefix}-gpus", classes=(f"{slug}.gpu.nvidia.com",), amount=str(stock.whole)))
    if stock.capacity:
        shared = f'{select} && "{names.SHARING_STRATEGY}" in device.attributes["{driver}"]'
        amount = _amount(stock.capacity[MEMORY], MEMORY)
        found.append(
            Quota(
                name=f"{prefix}-shared-memory",
                classes=(f"{slug}.shared.nvidia.com",),
                amount=amount,
                selector=shared,
                capacity=MEMORY,
            )
        )
    return found


def configuration(quotas: Sequence[Quota], driver: str) -> dict[str, object]:
    """Return the part of Kueue's Configuration that maps the classes of `queue_objects`."""
    gates = {"featureGates": {_GATE: True}} if any(quota.capacity for quota in quotas) else {}
    mappings = [quota.mapping(driver) for quota in quotas]
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        **gates,
        "resources": {"deviceClassMappings": mappings},
    }


def drift(text: str, slices: Sequence[Wire], driver: str) -> str:
    """Return how the mappings of Kueue's Configuration differ from `configuration` for these slices, "" if they do not
    or if none is about the driver. Raises YAMLError, ConfigurationError for a key of another type, and ValueError for
    invalid quantities."""
    resources = _typed(_typed(yaml.safe_load(text), dict, "Configuration").get("resources"), dict, "resources")
    key = "resources.deviceClassMappings"
    mappings = [_typed(each, dict, f"{key}[]") for each in _typed(resources.get("deviceClassMappings"), list, key)]
    known = {str(each["name"]): each for each in mappings if str(each.get("name")).startswith(f"{driver}/")}
    wanted = {
        quota.name: quota.mapping(driver) for stock in stocks_of(slices, driver) for quota in quotas_of(stock, driver)
    }
    parts = {
        "without a mapping": sorted(wanted.keys() - known.keys()),
        "of no published device": sorted(known.keys() - wanted.keys()),
        "with other classes or sources": sorted(n for n in known.keys() & wanted.keys() if known[n] != wanted[n]),
    }
    return "; ".join(f"{what}: {listed(names)}" for what, names in parts.items() if names) if known else ""


def _typed(value: object, kind: type, key: str) -> Any:
    if value is None or isinstance(value, kind):
        return kind() if value is None else value
    raise ConfigurationError(f"Kueue's Configuration: {key} is of type {type(value).__name__}, not {kind.__name__}")


def queue_objects(
    state: ClusterState, stocks: Sequence[ModelStock], quotas: Sequence[Quota], driver: str, namespace: str
) -> list[dict[str, object]]:
    """Return the classes of each model, a flavor, a ClusterQueue with the quotas, the CPU and memory of the nodes that
    publish devices, and published whole GPUs as extended resource, and a LocalQueue in ``namespace`` if not empty."""
    covered = {**_node_amounts(state, driver), **{quota.name: quota.amount for quota in quotas}}
    if (extended := extended_resource(state, driver)) and any(stock.all_whole for stock in stocks):
        covered[extended] = str(sum(stock.whole for stock in stocks))  # by number, because no mapping has this class
    resources = [{"name": name, "nominalQuota": amount} for name, amount in covered.items()]
    group = {"coveredResources": [*covered], "flavors": [{"name": QUEUE, "resources": resources}]}
    named = {name for quota in quotas for name in quota.classes}
    found: list[dict[str, object]] = [each for stock in stocks for each in _classes(stock, driver, named)]
    found.append(_object("ResourceFlavor"))
    found.append(_object("ClusterQueue", spec={"namespaceSelector": {}, "resourceGroups": [group]}))
    if namespace:
        found.append(_object("LocalQueue", spec={"clusterQueue": QUEUE}, namespace=namespace))
    return found


def extended_resource(state: ClusterState, driver: str) -> str:
    """Return the extended resource of the driver's default class, "" without one."""
    own = next((each.get("spec") or {} for each in state.classes if each["metadata"].get("name") == driver), {})
    return str(own.get("extendedResourceName") or "")


def _classes(stock: ModelStock, driver: str, named: set[str]) -> Iterable[dict[str, object]]:
    slug, select, own = _slug(stock.product), _selector(stock, driver), f'device.attributes["{driver}"]'
    forms = {
        "gpu": f'{own}.{names.TYPE} == "gpu" && !("{names.SHARING_STRATEGY}" in {own})',
        names.TYPE_MIG: f'{own}.{names.TYPE} == "{names.TYPE_MIG}"',
        "shared": f'{own}.{names.TYPE} == "gpu" && "{names.SHARING_STRATEGY}" in {own}',
    }
    for form, clause in forms.items():
        if (name := f"{slug}.{form}.nvidia.com") in named:
            spec = {"selectors": [{"cel": {"expression": f"{select} && {clause}"}}]}
            yield {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def _object(kind: str, **fields: Mapping[str, object] | str) -> dict[str, object]:
    namespace = {"namespace": fields.pop("namespace")} if "namespace" in fields else {}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": QUEUE, **namespace}, **fields}


def _node_amounts(state: ClusterState, driver: str) -> dict[str, str]:
    publishing = {item["spec"].get("nodeName") for item in state.slices if item["spec"]["driver"] == driver}
    allocatable = [
        (node.get("status") or {}).get("allocatable") or {}
        for node in state.nodes
        if node["metadata"].get("name") in publishing
    ]
    sums = {name: sum(nano(each[name]) for each in allocatable if name in each) for name in ("cpu", "memory")}
    return {name: _amount(value, name) for name, value in sums.items() if value}


def _selector(stock: ModelStock, driver: str) -> str:
    product = json.dumps(stock.product)  # a JSON string is a CEL string
    return f'device.driver == "{driver}" && device.attributes["{driver}"].{names.PRODUCT_NAME} == {product}'


def _slug(product: str) -> str:
    """Return the model as a part of names; the end of a long one is a hash."""
    slug = _WORD.sub("-", product.lower()).strip("-")
    mark = hashlib.sha256(product.encode()).hexdigest()[:6]
    return slug if len(slug) <= _MAX_SLUG else f"{slug[: _MAX_SLUG - 7].strip('-')}-{mark}"


def _amount(value: int, name: str) -> str:
    return str(Quantity(value, Format.BINARY_SI if MEMORY in name else Format.DECIMAL_SI))

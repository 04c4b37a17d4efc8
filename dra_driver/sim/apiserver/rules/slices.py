"""Validation of ResourceSlices: pools, node selection, counters and devices. Follows kubernetes/kubernetes
pkg/apis/resource/validation/validation.go and pkg/registry/resource/resourceslice/strategy.go of 1.36.2 with default
feature gates: list attributes and node-allocatable mappings are dropped."""

import re
from collections.abc import Sequence
from functools import partial

from dra_driver.core.quantity import Quantity
from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping, utc_now
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.rules import dra
from dra_driver.sim.apiserver.validation import (
    StatusCause,
    dns_subdomain,
    forbidden_field,
    invalid,
    required,
    too_long,
    too_many,
)

MAX_DEVICES = 128
MAX_DEVICES_WITH_TAINTS_OR_COUNTERS = 64
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32
_LIST_ATTRIBUTES = ("bools", "ints", "strings", "versions")


def _default(obj: Obj) -> None:
    if pool := mapping(obj, "spec", "pool"):
        pool.setdefault("generation", 0)
    for device in entries(obj, "spec", "devices"):
        for item in entries(device, "taints"):
            item.setdefault("timeAdded", rfc3339(utc_now()))


def _drop_gated(obj: Obj) -> None:
    """Drop fields whose feature gates are off by default in 1.36, silently, as the real server does."""
    for device in entries(obj, "spec", "devices"):
        device.pop("nodeAllocatableResourceMappings", None)
        for attribute in mapping(device, "attributes").values():
            for field in _LIST_ATTRIBUTES:
                attribute.pop(field, None)


def _pool(pool: Obj) -> list[StatusCause]:
    problems = dra.pool_name(pool.get("name", ""), "spec.pool.name")
    if (count := pool.get("resourceSliceCount", 0)) <= 0:
        problems.append(invalid("spec.pool.resourceSliceCount", count, "must be greater than zero"))
    if (generation := pool.get("generation", 0)) < 0:
        problems.append(invalid("spec.pool.generation", generation, "must be greater than or equal to zero"))
    return problems


def _immutable(obj: Obj, old: Obj) -> list[StatusCause]:
    paths = (("spec", "pool", "name"), ("spec", "driver"), ("spec", "nodeName"))
    changed = [path for path in paths if dig(obj, *path) != dig(old, *path)]
    return [invalid(".".join(path), dig(obj, *path), "field is immutable") for path in changed]


def _node_selection(
    owner: Obj, path: str, fields: Sequence[str], *, empty: str, none: str, many: str
) -> list[StatusCause]:
    """Problems of a slice's or device's choice of nodes; the texts are for an empty nodeName, no field and several."""
    problems: list[StatusCause] = []
    chosen: list[str] = []
    for field in fields:
        if field not in owner:
            continue
        value, where = owner[field], f"{path}.{field}"
        if value or field == "nodeSelector":
            chosen.append(f"`{field}`")
        if field == "nodeSelector":
            problems += dra.node_selector_problems(value, where)
        elif field == "nodeName":
            problems += [invalid(where, value, text) for text in (dns_subdomain(value) if value else [empty])]
        elif not value:
            problems.append(invalid(where, False, "must be either unset or set to true"))
    if not chosen:
        problems.append(required(path, none))
    elif len(chosen) > 1:
        problems.append(invalid(path, f"{{{', '.join(chosen)}}}", many))
    return problems


def _slice_node_selection(spec: Obj, path: str) -> list[StatusCause]:
    fields = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
    text = f"exactly one of {', '.join(f'`{field}`' for field in fields)} is required"
    empty, many = "must be either unset or set to a non-empty string", f"{text}, but multiple fields are set"
    problems = _node_selection(spec, path, fields, empty=empty, none=text, many=many)
    terms = entries(spec, "nodeSelector", "nodeSelectorTerms")
    if "nodeSelector" in spec and len(terms) != 1:
        text = "must have exactly one node selector term"
        problems.append(invalid(f"{path}.nodeSelector.nodeSelectorTerms", terms, text))
    return problems


def _device_node_selection(device: Obj, path: str, *, per_device: bool) -> list[StatusCause]:
    fields = ("nodeName", "nodeSelector", "allNodes")
    if per_device:
        text = (
            "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when "
            "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
        )
        return _node_selection(device, path, fields, empty="must not be empty", none=text, many=text)
    text = (
        "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` "
        "is set to true in the ResourceSlice spec"
    )
    return [invalid(path, None, text)] if any(field in device for field in fields) else []


def _counters(item: Obj, path: str, name_field: str) -> list[StatusCause]:
    name, counters = item.get(name_field, ""), mapping(item, "counters")
    problems = dra.label_name(name, f"{path}.{name_field}") if name else [required(f"{path}.{name_field}")]
    if not counters:
        return [*problems, required(f"{path}.counters")]
    if len(counters) > MAX_COUNTERS:
        return [*problems, too_many(f"{path}.counters", len(counters), MAX_COUNTERS)]
    return problems + [problem for counter in counters for problem in dra.label_name(counter, f"{path}.counters")]


def _validate(obj: Obj, review: Review) -> list[StatusCause]:
    spec = mapping(obj, "spec")
    problems = dra.driver_name(spec.get("driver", ""), "spec.driver") + _pool(mapping(spec, "pool"))
    if review.old is not None:
        problems += _immutable(obj, review.old)
    problems += _slice_node_selection(spec, "spec")
    if "sharedCounters" in spec and "devices" in spec:
        problems.append(invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    devices, per_device = entries(spec, "devices"), bool(spec.get("perDeviceNodeSelection"))
    is_limited = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    old_devices = {device.get("name"): device for device in entries(review.old, "spec", "devices")}

    def check(device: Obj, here: str) -> list[StatusCause]:
        return device_problems(device, old_devices.get(device.get("name")), here, per_device=per_device)

    limit = MAX_DEVICES_WITH_TAINTS_OR_COUNTERS if is_limited else MAX_DEVICES
    problems += dra.each_unique(devices, limit, check, "spec.devices")
    sets, check_set = entries(spec, "sharedCounters"), partial(_counters, name_field="name")
    return problems + dra.each_unique(sets, MAX_COUNTER_SETS, check_set, "spec.sharedCounters")


SLICE_RULES = WriteRules(
    default=_default,
    prepare_create=_drop_gated,
    prepare_update=lambda obj, _old, _sub: _drop_gated(obj),
    validate=_validate,
)


MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_VALUE_BYTES = 64
MAX_TAINTS = 16
MAX_COUNTER_CONSUMPTIONS = 2
MAX_VALID_VALUES = 10

_NUMBER = r"(0|[1-9]\d*)"
_PRE = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_BUILD = r"[0-9a-zA-Z-]+"
_SEMVER = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE}(\.{_PRE})*)?(\+{_BUILD}(\.{_BUILD})*)?", re.ASCII)


def device_problems(device: Obj, old: Obj | None, path: str, *, per_device: bool) -> list[StatusCause]:
    """The problems of one device; unchanged taints of ``old`` are not checked again."""
    problems = dra.label_name(device.get("name", ""), f"{path}.name")
    attributes, capacity = mapping(device, "attributes"), mapping(device, "capacity")
    if (count := len(attributes) + len(capacity)) > MAX_ATTRIBUTES_AND_CAPACITIES:
        text = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}"
        problems.append(invalid(path, count, text))
    problems += _named(attributes, f"{path}.attributes", _attribute)
    check_capacity = partial(_capacity, shared=bool(device.get("allowMultipleAllocations")))
    problems += _named(capacity, f"{path}.capacity", check_capacity)
    if old is None or old.get("taints") != device.get("taints"):
        problems += dra.each(entries(device, "taints"), MAX_TAINTS, dra.taint, f"{path}.taints")
    consumed, where = entries(device, "consumesCounters"), f"{path}.consumesCounters"
    check = partial(_counters, name_field="counterSet")
    problems += dra.each_unique(
        consumed, MAX_COUNTER_CONSUMPTIONS, check, where, lambda item: item.get("counterSet", "")
    )
    return problems + _device_node_selection(device, path, per_device=per_device) + dra.binding_conditions(device, path)


def _named(values: Obj, path: str, check: dra.Check[Obj]) -> list[StatusCause]:
    checked = (dra.qualified_name(name, path) + check(value, f"{path}[{name}]") for name, value in values.items())
    return [problem for problems in checked for problem in problems]


def _attribute(value: Obj, path: str) -> list[StatusCause]:
    problems: list[StatusCause] = []
    if len(value.get("string", "").encode()) > MAX_VALUE_BYTES:
        problems.append(too_long(f"{path}.string", MAX_VALUE_BYTES))
    if "version" in value:
        if not _SEMVER.fullmatch(value["version"]):
            text = "must be a string compatible with semver.org spec 2.0.0"
            problems.append(invalid(f"{path}.version", value["version"], text))
        if len(value["version"].encode()) > MAX_VALUE_BYTES:
            problems.append(too_long(f"{path}.version", MAX_VALUE_BYTES))
    if len(value) != 1:
        problems.append(invalid(path, value if value else "", "exactly one value must be specified"))
    return problems


def _capacity(value: Obj, path: str, *, shared: bool) -> list[StatusCause]:
    policy, where = value.get("requestPolicy"), f"{path}.requestPolicy"
    if "requestPolicy" in value and not shared:
        return [forbidden_field(where, "allowMultipleAllocations must be true")]
    if policy is None:
        return []
    limit = Quantity.parse(str(value.get("value", "0")))
    options, span = entries(policy, "validValues"), policy.get("validRange")
    if options and span is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden_field(where, text)]
    if not options and span is None:
        return []
    if "default" not in policy:
        kind = "validValues" if options else "validRange"
        return [required(f"{where}.default", f"required when {kind} is defined")]
    default = Quantity.parse(str(policy["default"]))
    if options:
        return _valid_values([Quantity.parse(str(item)) for item in options], default, limit, f"{where}.validValues")
    bounds = {key: Quantity.parse(str(item)) for key, item in mapping(policy, "validRange").items()}
    return _valid_range(bounds, default, limit, f"{where}.validRange")


def _valid_values(options: list[Quantity], default: Quantity, limit: Quantity, path: str) -> list[StatusCause]:
    problems = [
        invalid(f"{path}[{at + 1}]", str(options[at + 1]), "values must be sorted in ascending order")
        for at in range(len(options) - 1)
        if options[at] > options[at + 1]
    ]

    def check(option: Quantity, here: str) -> list[StatusCause]:
        return [invalid(here, str(option), f"option is larger than capacity value: {limit}")] if option > limit else []

    problems += dra.each_unique(options, MAX_VALID_VALUES, check, path, lambda option: str(option.as_int()))
    if default not in options:
        problems.append(invalid(path, str(default), "default value is not valid according to the requestPolicy"))
    return problems


def _valid_range(bounds: dict[str, Quantity], default: Quantity, limit: Quantity, path: str) -> list[StatusCause]:
    if "min" not in bounds:
        return [required(f"{path}.min", "required when validRange is defined")]
    low, problems = bounds["min"], []
    if low > limit:
        problems.append(invalid(f"{path}.min", str(low), f"min is larger than capacity value: {limit}"))
    if default < low:
        problems.append(invalid(f"{path}.min", str(default), f"default is less than min: {low}"))
    high = bounds.get("max")
    if high is not None:
        if low > high:
            problems.append(invalid(f"{path}.max", str(low), f"min is larger than max: {high}"))
        if high > limit:
            problems.append(invalid(f"{path}.max", str(high), f"max is larger than capacity value: {limit}"))
        if default > high:
            problems.append(invalid(f"{path}.max", str(default), f"default is more than max: {high}"))
    if step := bounds.get("step"):
        first, size = low.as_int(), step.as_int()
        if first + size > limit.as_int():
            text = f"one step {first + size} is larger than capacity value: {limit}"
            problems.append(invalid(f"{path}.step", str(step), text))
        for value in (default, *([high] if high is not None else [])):
            # The real server divides by zero and panics on a step of 0; here no value fits it.
            if not size or (value.as_int() - first) % size:
                text = f"value is not a multiple of a given step ({step}) from ({low})"
                problems.append(invalid(f"{path}.step", str(value), text))
    return problems

"""Builds the AllocationResult that the scheduler writes into ``status.allocation``.

Follows the end of ``Allocate`` and ``createNodeSelector`` in structured/internal/incubating/allocator_incubating.go of
k8s.io/dynamic-resource-allocation. Fields that the API of 1.36 does not have are dropped, as decoding in Go drops them.
"""

from collections.abc import Callable, Sequence
from typing import Final

from dra_driver.core.errors import AllocationError
from dra_driver.scheduler.allocation.events import Wire
from dra_driver.scheduler.allocation.requests import Alternative, DecodedClaim
from dra_driver.scheduler.allocation.scheduler_quirks import SchedulerFeatures, SchedulerQuirks, SchedulerRules
from dra_driver.scheduler.allocation.state import Pick

_TOLERATION: Final = ("key", "operator", "value", "effect", "tolerationSeconds")
_REQUIREMENT: Final = ("key", "operator", "values")


def allocation_result(
    claim: DecodedClaim,
    picks: Sequence[Pick],
    chosen: Sequence[Alternative],
    *,
    node: Wire,
    rules: SchedulerRules,
    new_share_id: Callable[[], str],
) -> dict[str, object]:
    """The allocation of one claim. Raises AllocationError if the node selectors of its devices cannot be merged."""
    features, quirks = rules.features, rules.quirks
    devices: dict[str, object] = {}
    if picks:
        devices["results"] = [_result(pick, rules, new_share_id) for pick in picks]
    config = [*_class_configs(chosen), *_claim_configs(claim.wire, chosen, quirks)]
    if not quirks.config_keeps_names:
        config = [_for_all(entry, chosen) for entry in config]
    if config:
        devices["config"] = config
    allocation: dict[str, object] = {"devices": devices}
    selector = _node_selector(claim, picks, node, features)
    if selector is not None:
        allocation["nodeSelector"] = selector
    return allocation


def _result(pick: Pick, rules: SchedulerRules, new_share_id: Callable[[], str]) -> dict[str, object]:
    features, quirks = rules.features, rules.quirks
    driver, pool, device = pick.device.id
    result: dict[str, object] = {"request": pick.alternative.name, "driver": driver, "pool": pool, "device": device}
    if pick.alternative.admin_access:
        result["adminAccess"] = True
    if pick.alternative.tolerations and not quirks.tolerations_dropped:
        result["tolerations"] = [_only(_TOLERATION, item) for item in pick.alternative.tolerations]
    if features.binding_conditions:
        for field in ("bindingConditions", "bindingFailureConditions"):
            if pick.device.wire.get(field):
                result[field] = list(pick.device.wire[field])
    if pick.consumed is not None:
        result["shareID"] = new_share_id()
        if pick.consumed:
            result["consumedCapacity"] = {name: value.text for name, value in pick.consumed.items()}
    return result


def _only(fields: Sequence[str], of: Wire) -> dict[str, object]:
    return {field: of[field] for field in fields if of.get(field) not in (None, "")}


def _configuration(of: Wire) -> dict[str, object]:
    opaque = of.get("opaque")
    if opaque is None:
        return {}
    return {"opaque": {field: opaque[field] for field in ("driver", "parameters") if field in opaque}}


def _class_configs(chosen: Sequence[Alternative]) -> list[Wire]:
    """The configuration of each class once, for all requests that use the class."""
    users: dict[str, list[Alternative]] = {}
    for alternative in chosen:
        users.setdefault(alternative.device_class["metadata"]["name"], []).append(alternative)
    return [
        {"source": "FromClass", "requests": [user.name for user in group], **_configuration(config)}
        for group in users.values()
        for config in group[0].device_class["spec"].get("config") or ()
    ]


def _claim_configs(claim: Wire, chosen: Sequence[Alternative], quirks: SchedulerQuirks) -> list[Wire]:
    """Entries without request names once. Others once for each named request in 1.36, once from 1.37 on."""
    configs: list[Wire] = []
    for config in (claim["spec"].get("devices") or {}).get("config") or ():
        entry = {"source": "FromClaim", **_configuration(config)}
        names = config.get("requests") or ()
        if not names:
            configs.append(entry)
            continue
        entry["requests"] = list(names)
        count = sum(alternative.base in names or alternative.name in names for alternative in chosen)
        configs += [entry] * (count if quirks.config_per_name else min(count, 1))
    return configs


def _for_all(entry: Wire, chosen: Sequence[Alternative]) -> Wire:
    """The entry without request names if it applies to every request, which means the same."""
    names = entry.get("requests")
    if names and all(one.base in names or one.name in names for one in chosen):
        return {field: value for field, value in entry.items() if field != "requests"}
    return entry


def _node_selector(
    claim: DecodedClaim, picks: Sequence[Pick], node: Wire, features: SchedulerFeatures
) -> dict[str, object] | None:
    term: dict[str, list[Wire]] = {"matchExpressions": [], "matchFields": []}
    for pick in picks:
        placement = pick.device.placement
        local = placement.get("nodeName") is not None
        if local or (pick.device.wire.get("bindsToNode") and not features.stable):
            only = {"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}
            return {"nodeSelectorTerms": [{"matchFields": [only]}]}
        _merge(claim, placement.get("nodeSelector"), term)
    filled = {part: requirements for part, requirements in term.items() if requirements}
    return {"nodeSelectorTerms": [filled]} if filled else None


def _merge(claim: DecodedClaim, selector: Wire | None, term: dict[str, list[Wire]]) -> None:
    terms: Sequence[Wire] = (selector or {}).get("nodeSelectorTerms") or []
    if len(terms) > 1:
        why = f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
        raise AllocationError(f"create NodeSelector for {claim.label}: {why}")
    for part, known in term.items():
        for item in terms[0].get(part) or () if terms else ():
            if not any(_same(item, other) for other in known):
                known.append(_only(_REQUIREMENT, item))


def _same(left: Wire, right: Wire) -> bool:
    """Whether both requirements are equal, in any order of their values."""
    values = [set(item.get("values") or ()) for item in (left, right)]
    return values[0] == values[1] and all(left.get(part) == right.get(part) for part in ("key", "operator"))

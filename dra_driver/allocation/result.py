"""An AllocationResult as the scheduler writes it into ``status.allocation``: results, configuration, node selector."""

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.allocation.requests import Alternative, claim_label
from dra_driver.allocation.search import Pick
from dra_driver.errors import AllocationError

Wire = Mapping[str, Any]


def allocation_result(claim: Wire, picks: Sequence[Pick], chosen: Sequence[Alternative], node: Wire) -> dict[str, Any]:
    """The allocation of one claim. Raises AllocationError when its devices' node selectors cannot be merged."""
    devices: dict[str, Any] = {"results": [_result(pick) for pick in picks]}
    config = [*_class_configs(chosen), *_claim_configs(claim, chosen)]
    if config:
        devices["config"] = config
    allocation: dict[str, Any] = {"devices": devices}
    selector = _node_selector(claim, picks, node)
    if selector is not None:
        allocation["nodeSelector"] = selector
    return allocation


def _result(pick: Pick) -> dict[str, Any]:
    driver, pool, device = pick.device.id
    result: dict[str, Any] = {"request": pick.alternative.name, "driver": driver, "pool": pool, "device": device}
    if pick.alternative.admin_access:
        result["adminAccess"] = True
    if pick.alternative.tolerations:
        result["tolerations"] = [dict(toleration) for toleration in pick.alternative.tolerations]
    for field in ("bindingConditions", "bindingFailureConditions"):
        if pick.device.wire.get(field):
            result[field] = list(pick.device.wire[field])
    return result


def _class_configs(chosen: Sequence[Alternative]) -> list[dict[str, Any]]:
    """Each class once, for all requests that use it."""
    users: dict[str, list[Alternative]] = {}
    for alternative in chosen:
        users.setdefault(alternative.device_class["metadata"]["name"], []).append(alternative)
    return [
        {"source": "FromClass", "requests": [user.name for user in group], **config}
        for group in users.values()
        for config in group[0].device_class["spec"].get("config") or ()
    ]


def _claim_configs(claim: Wire, chosen: Sequence[Alternative]) -> list[dict[str, Any]]:
    """Entries for everything once, others once for each request that they name, as Kubernetes up to 1.36 does."""
    configs: list[dict[str, Any]] = []
    for config in claim["spec"]["devices"].get("config") or ():
        entry = {"source": "FromClaim", **config}
        names = config.get("requests") or ()
        if not names:
            configs.append(entry)
        configs += [entry for alternative in chosen if alternative.base in names or alternative.name in names]
    return configs


def _node_selector(claim: Wire, picks: Sequence[Pick], node: Wire) -> dict[str, Any] | None:
    term: dict[str, list[Wire]] = {"matchExpressions": [], "matchFields": []}
    for pick in picks:
        placement = pick.device.placement
        if placement.get("nodeName") or pick.device.wire.get("bindsToNode"):
            only = {"key": "metadata.name", "operator": "In", "values": [node["metadata"]["name"]]}
            return {"nodeSelectorTerms": [{"matchFields": [only]}]}
        _merge(claim, placement.get("nodeSelector"), term)
    filled = {part: requirements for part, requirements in term.items() if requirements}
    return {"nodeSelectorTerms": [filled]} if filled else None


def _merge(claim: Wire, selector: Wire | None, term: dict[str, list[Wire]]) -> None:
    if selector is None:
        return
    terms: Sequence[Wire] = selector.get("nodeSelectorTerms") or []
    if len(terms) != 1:
        why = f"unsupported ResourceSlice.NodeSelector with {len(terms)} terms"
        raise AllocationError(f"{claim_label(claim)}: {why}")
    for part, known in term.items():
        for item in terms[0].get(part) or ():
            if not any(_same(item, other) for other in known):
                known.append(item)


def _same(left: Wire, right: Wire) -> bool:
    """The same requirement, in whatever order its values are."""
    values = [sorted(item.get("values") or ()) for item in (left, right)]
    return values[0] == values[1] and all(left.get(part) == right.get(part) for part in ("key", "operator"))

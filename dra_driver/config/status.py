"""GpuNode objects and the status of GpuPolicy: from values to what the API server stores, and back. Pure.

Lists and texts are cut to the bounds of the schemas in ``config/schemas/``: an object that is too long would be refused
as a whole, and a part of it is better than none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from dra_driver.config.usage_status import usage_in_words, usage_status, usage_status_of
from dra_driver.core.model.gpu_node import (
    MAX_GPUS,
    MAX_MESSAGE,
    MAX_NAMES,
    MAX_POLICIES,
    MAX_PROBLEMS,
    GpuNodeStatus,
    HealthWord,
    NodeGpu,
    NodePolicy,
    NodeProblem,
    PolicyCount,
    PolicyOrigin,
    PolicyState,
    PolicyStatus,
    PublishedForm,
)
from dra_driver.core.model.terms import Taint
from dra_driver.core.text import printable

NODE_KIND: Final = "GpuNode"
_MAX_LINE: Final = 253
_MAX_COLUMN: Final = 120
_MAX_VERSION: Final = 128
_MAX_CAUSES: Final = 16
_MAX_TAINTS: Final = 16

Json = dict[str, Any]
_Word = TypeVar("_Word", bound=StrEnum)


def node_status(status: GpuNodeStatus, observed_at: str) -> Json:
    """``status`` of the GpuNode. ``observed_at`` is RFC 3339 in UTC."""
    problems = [
        {"reason": each.reason, "message": _text(each.message, MAX_MESSAGE)} for each in status.problems[:MAX_PROBLEMS]
    ]
    return _given(
        observedAt=observed_at,
        driverName=status.driver_name,
        nodeProcessVersion=_version(status.node_process_version),
        driverVersion=_version(status.driver_version),
        nvmlVersion=_version(status.nvml_version),
        cudaVersion=_version(status.cuda_version),
        toolkitVersion=_version(status.toolkit_version),
        containerRuntimeVersion=_version(status.container_runtime_version),
        kernelVersion=_version(status.kernel_version),
        usage=usage_status(status.usage),
    ) | {
        "summary": summary_of(status),
        "gpus": [_gpu(gpu) for gpu in status.gpus[:MAX_GPUS]],
        "policies": [_policy(policy) for policy in status.policies[:MAX_POLICIES]],
        "problems": problems,
    }


def summary_of(status: GpuNodeStatus) -> Json:
    """The lists in words: ``kubectl get`` cannot count."""
    sick = [f"{gpu.name} {', '.join(gpu.causes) or gpu.health}" for gpu in status.gpus if _is_sick(gpu)]
    health = f"{len(sick)} of {len(status.gpus)} unhealthy: {'; '.join(sick)}" if sick else str(_common_health(status))
    return _given(
        gpus=min(len(status.gpus), 1024),
        products=_line(_counted((gpu.product_name or "unnamed" for gpu in status.gpus), times=" x ")),
        usedAs=_line(_counted((gpu.used_as for gpu in status.gpus), times=" ")),
        health=_line(health) if status.gpus else None,
        policies=_line(_policies_in_words(status.policies)),
        usage=_line(usage_in_words(status.usage) or ""),
        problems=min(len(status.problems), 1024),
        problem=_text(status.problems[0].message, _MAX_COLUMN) if status.problems else None,
    )


def node_status_of(written: object) -> GpuNodeStatus | None:
    """The status of a GpuNode object of any shape; None for one without. Entries that make no sense are left out."""
    status = written.get("status") if isinstance(written, Mapping) else None
    if not isinstance(status, Mapping) or not isinstance(status.get("driverName"), str):
        return None
    return GpuNodeStatus(
        driver_name=status["driverName"],
        node_process_version=_str(status, "nodeProcessVersion"),
        driver_version=_str(status, "driverVersion"),
        nvml_version=_str(status, "nvmlVersion"),
        cuda_version=_str(status, "cudaVersion"),
        toolkit_version=_str(status, "toolkitVersion"),
        container_runtime_version=_str(status, "containerRuntimeVersion"),
        kernel_version=_str(status, "kernelVersion"),
        gpus=tuple(gpu for each in _maps(status, "gpus", MAX_GPUS) if (gpu := _gpu_of(each))),
        policies=tuple(found for each in _maps(status, "policies", MAX_POLICIES) if (found := _policy_of(each))),
        problems=tuple(
            NodeProblem(reason=_str(each, "reason") or "", message=_str(each, "message") or "")
            for each in _maps(status, "problems", MAX_PROBLEMS)
        ),
        usage=usage_status_of(status.get("usage")),
    )


def policy_status(status: PolicyStatus) -> Json:
    """``status`` of the GpuPolicy without its conditions."""
    counts = {
        _camel(name): _count(getattr(status, name))
        for name in status.__struct_fields__
        if name != "observed_generation"
    }
    return _given(observedGeneration=status.observed_generation) | counts


def _gpu(gpu: NodeGpu) -> Json:
    taints = [_given(key=each.key, value=each.value or None, effect=each.effect) for each in gpu.taints[:_MAX_TAINTS]]
    return _given(
        name=gpu.name,
        uuid=gpu.uuid,
        productName=_version(gpu.product_name),
        memory=gpu.memory,
        offeredAs=[form.value for form in gpu.offered_as],
        usedAs=gpu.used_as.value,
        policy=gpu.policy or None,
        waiting=_text(gpu.waiting, MAX_MESSAGE),
        health=gpu.health.value,
        causes=list(gpu.causes[:_MAX_CAUSES]) or None,
        message=_text(gpu.message, MAX_MESSAGE),
        taints=taints or None,
    )


def _policy(policy: NodePolicy) -> Json:
    return _given(
        name=policy.name,
        source=policy.origin.value,
        generation=policy.generation,
        state=policy.state.value,
        gpus=list(policy.gpus[:MAX_GPUS]),
        inForce=list(policy.in_force[:MAX_GPUS]) or None,
        waiting=list(policy.waiting[:MAX_GPUS]) or None,
        conflicting=list(policy.conflicting[:MAX_GPUS]) or None,
        conflictsWith=list(policy.conflicts_with[:MAX_NAMES]) or None,
        waitingFor=list(policy.waiting_for[:MAX_NAMES]) or None,
        message=_text(policy.message, MAX_MESSAGE),
    )


def _count(count: PolicyCount) -> Json:
    places = [
        _given(
            node=place.node,
            gpus=list(place.gpus[:MAX_GPUS]) or None,
            claims=[_text(claim, _MAX_LINE) for claim in place.claims[:MAX_NAMES]] or None,
            policies=list(place.policies[:MAX_NAMES]) or None,
            message=_text(place.message, MAX_MESSAGE),
        )
        for place in count.places[:MAX_NAMES]
    ]
    return _given(nodes=count.nodes, gpus=count.gpus, places=places or None)


def _gpu_of(each: Mapping[str, Any]) -> NodeGpu | None:
    name, uuid, used = _str(each, "name"), _str(each, "uuid"), _enum(PublishedForm, each.get("usedAs"))
    if name is None or uuid is None:
        return None
    forms = (_enum(PublishedForm, form) for form in _list(each, "offeredAs"))
    return NodeGpu(
        name=name,
        uuid=uuid,
        product_name=_str(each, "productName"),
        memory=_str(each, "memory"),
        offered_as=tuple(form for form in forms if form is not None),
        used_as=used or PublishedForm.FREE,
        policy=_str(each, "policy") or "",
        waiting=_str(each, "waiting"),
        health=_enum(HealthWord, each.get("health")) or HealthWord.UNKNOWN,
        causes=_texts(each, "causes"),
        message=_str(each, "message"),
        taints=tuple(
            Taint(key=taint["key"], value=_str(taint, "value") or "", effect=taint["effect"])
            for taint in _maps(each, "taints", _MAX_TAINTS)
            if isinstance(taint.get("key"), str) and taint.get("effect") in ("NoSchedule", "NoExecute", "None")
        ),
    )


def _policy_of(each: Mapping[str, Any]) -> NodePolicy | None:
    name, state = _str(each, "name"), _enum(PolicyState, each.get("state"))
    origin, generation = _enum(PolicyOrigin, each.get("source")), each.get("generation")
    if name is None or state is None or origin is None:
        return None
    return NodePolicy(
        name=name,
        origin=origin,
        state=state,
        generation=generation if isinstance(generation, int) else None,
        gpus=_texts(each, "gpus"),
        in_force=_texts(each, "inForce"),
        waiting=_texts(each, "waiting"),
        conflicting=_texts(each, "conflicting"),
        conflicts_with=_texts(each, "conflictsWith"),
        waiting_for=_texts(each, "waitingFor"),
        message=_str(each, "message"),
    )


def _policies_in_words(policies: Sequence[NodePolicy]) -> str:
    """Names of those in force; then the others with their state."""
    good = [policy.name for policy in policies if policy.state is PolicyState.IN_FORCE]
    shown = (PolicyState.REFUSED, PolicyState.CONFLICTING, PolicyState.WAITING)
    bad = [f"{policy.name} ({policy.state})" for state in shown for policy in policies if policy.state is state]
    return ", ".join([*bad, *good])


def _is_sick(gpu: NodeGpu) -> bool:
    return gpu.health is HealthWord.UNHEALTHY


def _common_health(status: GpuNodeStatus) -> HealthWord:
    is_unknown = any(gpu.health is HealthWord.UNKNOWN for gpu in status.gpus)
    return HealthWord.UNKNOWN if is_unknown else HealthWord.HEALTHY


def _counted(words: Iterable[str], times: str) -> str:
    return ", ".join(f"{count}{times}{word}" for word, count in sorted(Counter(map(str, words)).items()))


def _given(**found: Any) -> Json:
    """Without fields that are None."""
    return {name: value for name, value in found.items() if value is not None}


def _line(text: str) -> str | None:
    return _text(text, _MAX_LINE)


def _version(text: str | None) -> str | None:
    return _text(text, _MAX_VERSION)


def _text(text: str | None, longest: int) -> str | None:
    if not text:
        return None
    shown = printable(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def _str(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) and value else None


def _list(found: Mapping[str, Any], name: str) -> list[Any]:
    value = found.get(name)
    return value if isinstance(value, list) else []


def _maps(found: Mapping[str, Any], name: str, most: int) -> list[Mapping[str, Any]]:
    return [each for each in _list(found, name)[:most] if isinstance(each, Mapping)]


def _texts(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(each for each in _list(found, name)[:MAX_GPUS] if isinstance(each, str))


def _enum(kind: type[_Word], value: object) -> _Word | None:
    return next((each for each in kind if each.value == value), None)

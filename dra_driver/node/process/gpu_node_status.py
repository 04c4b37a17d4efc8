"""What a node process says in the GpuNode of its node, from what it knows. Pure."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.gpu_node import (
    NO_USAGE,
    GpuNodeStatus,
    HealthWord,
    NodeGpu,
    NodePolicy,
    NodeProblem,
    NodeTaint,
    PublishedForm,
    ToldUsage,
)
from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form, GpuTerms, Terms, Use, terms_of
from dra_driver.core.quantity import Quantity

_FORMS = {Form.PARTITION: PublishedForm.PARTITIONS, Form.SHARE: PublishedForm.SHARED, Form.WHOLE: PublishedForm.WHOLE}


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What the node process knows at one moment.

    ``terms`` are those that are published. ``missing`` are GPUs of the snapshot that are not found any more. With
    ``watches_health`` False, nothing is known about health.
    """

    snapshot: Snapshot
    terms: Terms
    uses: tuple[Use, ...] = ()
    conditions: tuple[HealthCondition, ...] = ()
    missing: frozenset[GpuUuid] = frozenset()
    watches_health: bool = True
    policies: tuple[NodePolicy, ...] = ()
    problems: tuple[NodeProblem, ...] = ()
    usage: ToldUsage = NO_USAGE


class Versions(Struct, frozen=True, kw_only=True):
    """What the node runs, as far as it is known."""

    node_process: str
    nvml: str | None = None
    toolkit: str | None = None
    container_runtime: str | None = None
    kernel: str | None = None


def status_of(facts: NodeFacts, driver_name: str, versions: Versions) -> GpuNodeStatus:
    """The status of the GpuNode."""
    cuda = facts.snapshot.cuda_driver_version
    left_out = [
        NodeProblem(reason="GpuLeftOut", message=f"GPU {each.label} cannot be used: {each.reason}")
        for each in facts.snapshot.left_out
    ]
    return GpuNodeStatus(
        driver_name=driver_name,
        node_process_version=versions.node_process,
        driver_version=facts.snapshot.driver_version,
        nvml_version=versions.nvml,
        cuda_version=f"{cuda[0]}.{cuda[1]}" if cuda is not None else None,
        toolkit_version=versions.toolkit,
        container_runtime_version=versions.container_runtime,
        kernel_version=versions.kernel,
        gpus=tuple(_gpu(gpu, facts) for gpu in facts.snapshot.gpus),
        policies=facts.policies,
        problems=(*facts.problems, *left_out),
        usage=facts.usage,
    )


def _gpu(gpu: Gpu, facts: NodeFacts) -> NodeGpu:
    terms = terms_of(facts.terms, gpu.uuid)
    sick = [each for each in facts.conditions if each.gpu_uuid == gpu.uuid and each.severity is not Severity.COUNTED]
    bad = [each for each in sick if each.cause is not HealthCause.UNMONITORED]
    causes = tuple(dict.fromkeys(each.cause.value for each in bad or sick))
    messages = list(dict.fromkeys(each.message for each in bad or sick))
    health = HealthWord.UNHEALTHY if bad else HealthWord.UNKNOWN if sick else HealthWord.HEALTHY
    if not facts.watches_health:
        health = HealthWord.UNKNOWN
    if gpu.uuid in facts.missing and not bad:
        health, causes = HealthWord.UNHEALTHY, (HealthCause.LOST.value,)
        messages = ["the GPU is not found on its node any more"]
    return NodeGpu(
        name=gpu.device_name,
        uuid=gpu.uuid,
        product_name=gpu.product_name,
        memory=str(Quantity.from_bytes(gpu.memory_bytes)) if gpu.memory_bytes is not None else None,
        offered_as=offered_forms(gpu, terms),
        used_as=used_form(use for use in facts.uses if use.gpu_uuid == gpu.uuid),
        policy=terms.policy,
        waiting=terms.waiting,
        health=health,
        causes=causes,
        message="; ".join(messages) or None,
        taints=tuple(
            NodeTaint(key=taint.key, value=taint.value, effect=taint.effect)
            for taint in (*terms.taints, *terms.condition_taints, *terms.whole_taints)
        ),
    )


def offered_forms(gpu: Gpu, terms: GpuTerms) -> tuple[PublishedForm, ...]:
    """The forms in which new claims may have the GPU.

    Partitions where they are published: not where MIG mode is off and switching it on takes a reset of the GPU.
    """
    if not terms.offered:
        return ()
    forms = [PublishedForm.SHARED if terms.sharing is not None else PublishedForm.WHOLE] if terms.whole else []
    allowed = terms.profiles is None or any(profile.profile_id in terms.profiles for profile in gpu.mig_profiles)
    if gpu.mig_profiles and allowed and (gpu.mig_enabled or gpu.mig_resetless):
        forms.append(PublishedForm.PARTITIONS)
    return tuple(forms)


def used_form(uses: Iterable[Use]) -> PublishedForm:
    """The form that claims have of a GPU; the whole one where they have several, as during a change."""
    found = {use.form for use in uses}
    return next((word for form, word in reversed(_FORMS.items()) if form in found), PublishedForm.FREE)


def claims_by_gpu(holdings: Iterable[tuple[GpuUuid, ClaimRef]]) -> Mapping[GpuUuid, list[str]]:
    """Claims as ``namespace/name`` by the GPU that they have, each once and in order."""
    found: dict[GpuUuid, list[str]] = {}
    for gpu, claim in sorted({(gpu, f"{claim.namespace}/{claim.name}") for gpu, claim in holdings}):
        found.setdefault(gpu, []).append(claim)
    return found

"""Devices that a claim holds and that are unhealthy, in each answer; fixes that do not use them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from dra_driver.core.model.gpu_operation import OPERATION_TAINT
from dra_driver.core.model.health import TAINT_KEYS, HealthCause
from dra_driver.kube.state import ClusterState, with_objects
from dra_driver.kubectl.capacity import claims_of, survey
from dra_driver.kubectl.commands.capacity import _gpus
from dra_driver.kubectl.commands.claims import COLUMNS
from dra_driver.kubectl.explain import Answer, claim_subject, explain, explain_pods, render
from dra_driver.kubectl.explain.manifests import pods_in
from dra_driver.kubectl.web.fleet import fleet_of
from tests.fakes.dra_objects import Obj, device_class, exactly, node, resource_slice
from tests.unit.kubectl.capacity.helpers import cells
from tests.unit.kubectl.explain.clusters import A, a100, allocated_claim, cluster, explained, pod, template

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOST = {"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}
DRAINED = {"key": "gpu.dra-driver.io/drained", "effect": "NoSchedule"}
TRAIN = {"phase": "Running"}


def gpu(index: int, *taints: Obj) -> Obj:
    found = a100(index, **({"taints": list(taints)} if taints else {}))
    return {**found, "attributes": {**found["attributes"], "uuid": {"string": f"GPU-{index}"}}}


def held(*taints: Obj, **parts: Any) -> ClusterState:
    """Pod ``train`` runs on node a with claim ``c`` on gpu-0."""
    state = {
        "slices": [resource_slice("a", gpu(0, *taints), gpu(1))],
        "claims": [allocated_claim("c", "gpu-0", on="a", users=("train",))],
        "pods": [pod(claim="c", nodeName="a", status=TRAIN)],
        "nodes": [node("a")],
    }
    return cluster(**state | parts)


@pytest.mark.parametrize("cause", [cause for cause in HealthCause if cause is not HealthCause.UNMONITORED])
def test_a_pod_on_an_unhealthy_gpu_is_fine_in_no_answer(cause: HealthCause) -> None:
    state = held({"key": TAINT_KEYS[cause], "value": "79", "effect": "NoExecute"})
    shown = f"{TAINT_KEYS[cause]}=79"
    for report in (explained(state, dict(state.pods[0])), explain(state, claim_subject(state, "default", "c"))):
        assert report.verdict.answer is Answer.UNHEALTHY
        assert not report.verdict.answer.is_good
        assert f"but device gpu-0 of a/gpu.nvidia.com is unhealthy (taint {shown})" in report.verdict.sentence
        assert "fix: delete pod train; a new one fits on 1 of 1 node" in render(report)
    (claim,) = claims_of(state, NOW)
    row = cells(COLUMNS, claim)
    assert (row["DEVICES"], row["TAINTS"]) == ("gpu-0 (unhealthy)", shown)
    (model,) = survey(state).models
    assert (model.gpus.used, model.gpus.held_unhealthy, _gpus(model)[4]) == (1, 1, "1 held unhealthy")
    (page,) = fleet_of(state.slices, state.nodes, [claim], {}).nodes
    assert [each.is_unhealthy for each in page.gpus] == [True, False]


@pytest.mark.parametrize("taint", [DRAINED, {"key": "gpu.nvidia.com/unmonitored", "effect": "None"}, None])
def test_a_drained_or_unwatched_gpu_is_not_unhealthy(taint: Obj | None) -> None:
    state = held(*([taint] if taint else []))
    assert explained(state, dict(state.pods[0])).verdict.answer is Answer.RUNNING
    claims = claims_of(state, NOW)
    assert survey(state).models[0].gpus.held_unhealthy == 0
    assert [each.is_unhealthy for each in fleet_of(state.slices, state.nodes, claims, {}).nodes[0].gpus] == [
        False,
        False,
    ]


def test_a_held_device_that_is_not_published_has_unknown_health() -> None:
    state = held(slices=[resource_slice("a", gpu(1))])
    report = explained(state, dict(state.pods[0]))
    assert report.verdict.answer is Answer.UNHEALTHY
    assert "gpu-0 of a/gpu.nvidia.com is not published, so its health is unknown" in report.verdict.sentence
    assert cells(COLUMNS, claims_of(state, NOW)[0])["DEVICES"] == "gpu-0 (not published)"


def test_pods_that_share_a_healthy_claim_stay() -> None:
    claims = [
        allocated_claim("c", "gpu-0", on="a", users=("train",)),
        allocated_claim("shared", "gpu-1", on="a", users=("innocent", "train")),
    ]
    train = pod(claim="c", nodeName="a", status=TRAIN)
    train["spec"]["resourceClaims"].append({"name": "other", "resourceClaimName": "shared"})
    state = held(LOST, claims=claims, pods=[train], slices=[resource_slice("a", gpu(0, LOST), gpu(1), gpu(2))])
    text = render(explained(state, dict(state.pods[0])))
    assert "fix: delete pod train; a new one" in text


def test_a_claim_that_tolerates_the_taint_loses_the_toleration_first() -> None:
    claim = allocated_claim("c", "gpu-0", on="a", users=("train",))
    claim["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [{"operator": "Exists"}]
    state = held(LOST, claims=[claim])
    fix = explained(state, dict(state.pods[0])).causes[0].fix
    assert fix.startswith("remove the tolerations of health taints from the claim, then delete pod train")


def test_waiting_pod_reports_claim_on_lost_gpu() -> None:
    state = held(LOST)
    report = explained(state, pod("second", claim="c"))
    assert report.verdict.answer is Answer.UNHEALTHY
    assert report.verdict.sentence.startswith("fits on 1 of 1 node, but device gpu-0 of a/gpu.nvidia.com is unhealthy")


def test_no_fix_uses_a_broken_gpu_and_one_in_use_is_nearer() -> None:
    state = held(slices=[resource_slice("a", gpu(0), gpu(1, LOST))], templates=[template("t")])
    report = explained(state, pod("second", template="t"))
    assert report.nearest_miss is not None
    assert (report.nearest_miss.device, report.nearest_miss.fix) == (
        "gpu-0",
        "end the workload that uses it: default/c (pod train)",
    )
    assert "1 in use, 1 unhealthy" in report.verdict.sentence
    alone = held(slices=[resource_slice("a", gpu(1, DRAINED, LOST))], templates=[template("t")], claims=[], pods=[])
    fix = explained(alone, pod("second", template="t")).nearest_miss
    assert fix is not None
    assert "kubectl dra undrain" in fix.fix
    assert "until the GPU recovers" in fix.fix
    assert "tolerat" not in fix.fix


def test_the_gpu_for_which_fewest_claims_end_is_nearest() -> None:
    claims = [allocated_claim(f"c{at}", *devices, on="a") for at, devices in enumerate((("gpu-0",), ("gpu-1",)))]
    state = held(claims=[allocated_claim("more", "gpu-0", on="a"), *claims], pods=[], templates=[template("t")])
    miss = explained(state, pod("second", template="t")).nearest_miss
    assert miss is not None
    assert (miss.device, miss.fix) == ("gpu-1", "delete the claim if it is no longer needed: default/c1 (no pod)")


def test_running_pod_does_not_block_itself() -> None:
    state = held(slices=[resource_slice("a", gpu(0))], templates=[template("t"), template("u", exactly(count=1))])
    (same,) = explain_pods(state, [{**pod(claim="c"), "metadata": {"name": "train", "namespace": "default"}}])
    assert same.verdict.answer is Answer.RUNNING
    # A manifest of the claim has no status; the cluster's claim keeps its own.
    bare = {"kind": "ResourceClaim", **{key: state.claims[0][key] for key in ("metadata", "spec")}}
    (again,) = claims_of(with_objects(state, [bare]), NOW)
    assert again.state == "allocated"
    # Of a Deployment, by its ReplicaSet; a second replica has no GPU left.
    owner = {"kind": "ReplicaSet", "name": "web-6d4f", "uid": "r"}
    running = pod("web-6d4f-x", template="t", nodeName="a", status=TRAIN)
    running["metadata"]["ownerReferences"] = [owner]
    claim = allocated_claim("c", "gpu-0", on="a", users=("web-6d4f-x",))
    claim["metadata"]["ownerReferences"] = [{"kind": "Pod", "name": "web-6d4f-x", "uid": "uid-of-web-6d4f-x"}]
    state = held(slices=state.slices, templates=state.templates, pods=[running], claims=[claim])
    running["status"] = {**TRAIN, "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]}

    def answers(template: str, replicas: int) -> list[Answer]:
        spec = pod(template=template)["spec"]
        web = {
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"replicas": replicas, "template": {"spec": spec}},
        }
        return [each.verdict.answer for each in explain_pods(state, pods_in([web], "default", "f"))]

    assert answers("t", 2) == [Answer.RUNNING, Answer.CANNOT_FIT]
    assert answers("u", 1) == [Answer.FITS], "with another template it is replaced"


@pytest.mark.parametrize(
    ("product", "profile"),
    [("NVIDIA A100-SXM4-40GB", "1g.5gb"), ("NVIDIA A100 80GB PCIe", "3g.40gb"), ("NVIDIA A30", "2g.12gb")],
)
def test_mig_mode_is_named_where_it_would_help(product: str, profile: str) -> None:
    whole = a100(0)
    whole["attributes"] |= {"productName": {"string": product}, "uuid": {"string": "GPU-0"}}
    mig = device_class("mig.nvidia.com", expression=f'{A}.type == "mig"')

    def causes(wanted: str) -> list[str]:
        request = exactly("gpu", f'{A}.profile == "{wanted}"', deviceClassName="mig.nvidia.com")
        state = cluster(slices=[resource_slice("a", whole)], classes=[mig], templates=[template("t", request)])
        report = explained(state)
        return [f"{cause.message}: {cause.fix}" for cause in report.causes]

    (said,) = causes(profile)
    assert f"a/gpu-0 ({product}) can have partitions and is published whole only: MIG mode is off, or a" in said
    assert "kubectl dra gpu mig-mode a/gpu-0 on" in said
    whole["taints"] = [{"key": OPERATION_TAINT, "value": "mig-on", "effect": "NoSchedule"}]
    (said,) = causes(profile)
    assert "MIG mode is being switched on, which waits until" in said
    assert causes("1g.99gb") == []
    (said,) = causes("1c.3g.20gb")
    assert "(1c.3g.20gb) are not supported: request the GPU instance 3g.20gb" in said

"""Workloads: extended resources become claims, labels of nodes become selectors, everything else stays."""

from typing import Any

import pytest
import yaml

from dra_driver.kubectl.migrate import Translation
from tests.unit.kubectl.migrate.helpers import migrated, of_inputs, said

FOUR = "resources: [{name: nvidia.com/gpu, replicas: 4}]"
SHARED = f"version: v1\nsharing: {{timeSlicing: {{renameByDefault: %s, {FOUR}}}}}\n"
MPS = f"version: v1\nsharing: {{mps: {{{FOUR}}}}}\n"


def container(name: str = "main", **resources: Any) -> dict[str, Any]:
    limits = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in resources.items()}
    return {"name": name, "image": "ubuntu:24.04", "resources": {"limits": limits}}


def pod(*containers: dict[str, Any], before: str = "", **spec: Any) -> str:
    value = {"metadata": {"name": "p"}, "spec": {"containers": [*containers], **spec}}
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", **value}, sort_keys=False)
    return f"{before}---\n{text}" if before else text


def spec_of(found: Translation) -> Any:
    (_, value) = found.workloads[-1]
    return value["spec"]


def made(inputs: str, kind: str) -> Any:
    """The object of the kind that an input becomes."""
    return next(value for _, value in of_inputs(inputs).workloads if value["kind"] == kind)


def requests(found: Translation) -> Any:
    return found.templates[0]["spec"]["spec"]["devices"]["requests"]


def affinity(*terms: list[tuple[str, str, list[str]]]) -> dict[str, Any]:
    keys = ("key", "operator", "values")
    made = [{"matchExpressions": [dict(zip(keys, each, strict=True)) for each in term]} for term in terms]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": made}}}


def test_a_count_becomes_a_count() -> None:
    found = migrated(pod(container(gpu=2)))
    assert requests(found) == [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]
    assert spec_of(found)["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert spec_of(found)["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu-x2"}]


@pytest.mark.parametrize(
    ("containers", "inits", "names"),
    [
        # The device plugin gave no device to two containers.
        ([("a", 1), ("b", 1)], [], ["a", "b"]),
        # The kubelet reused devices of init containers.
        ([("a", 1)], [("first", 1)], ["gpu"]),
        # A claim belongs to the pod: additional devices of an init container are held until the pod ends.
        ([("a", 1)], [("first", 2)], ["a", "first"]),
    ],
    ids=["two containers", "an init container", "an init container that needs more"],
)
def test_each_container_has_its_own_devices(
    containers: list[tuple[str, int]], inits: list[tuple[str, int]], names: list[str]
) -> None:
    before = [container(name, gpu=count) for name, count in inits]
    found = migrated(pod(*(container(name, gpu=count) for name, count in containers), initContainers=before))
    assert [each["name"] for each in requests(found)] == names
    several = names[1:] != []
    spec = spec_of(found)
    for index, each in enumerate([*spec["containers"], *spec["initContainers"]]):
        assert each["resources"]["claims"] == [{"name": "gpu", **({"request": names[index]} if several else {})}]
    if several and inits:
        assert "changed meaning" in said(found, 'initContainers[0].resources.limits["nvidia.com/gpu"]')[0]


@pytest.mark.parametrize(("containers", "first"), [([("a", 2)], 1), ([("a", 2), ("b", 4)], 2), ([], 2)])
def test_an_init_container_that_needs_less_uses_it_too(containers: list[tuple[str, int]], first: int) -> None:
    """The pod would wait for more GPUs than before: the device plugin gave it the larger number, not the sum."""
    inits = [container("zero", gpu=1), container("first", gpu=first)]
    found = migrated(pod(*(container(name, gpu=count) for name, count in containers), initContainers=inits))
    counts = [each["exactly"].get("count", 1) for each in requests(found)]
    assert counts == ([count for _, count in containers] or [2])
    if containers:
        (note,) = said(found, 'initContainers[0].resources.limits["nvidia.com/gpu"]')
        assert "changed meaning" in note
        assert "uses the request of container a: it sees 2 instead of 1" in note


def test_sidecar_has_separate_device_and_equal_templates_merge() -> None:
    sidecar = {**container("side", gpu=1), "restartPolicy": "Always"}
    found = migrated(pod(container("a", gpu=1), initContainers=[sidecar]))
    assert len(requests(found)) == 2
    found = migrated(pod(container(gpu=1)) + "---\n" + pod(container(gpu=1)))
    assert [each["metadata"]["name"] for each in found.templates] == ["gpu"]


def test_a_mig_resource_names_the_class_of_its_profile() -> None:
    found = migrated(pod(container(mig_1g_10gb=1)).replace("mig-1g-10gb", "mig-1g.10gb.me"))
    assert requests(found)[0]["exactly"] == {"deviceClassName": "mig-1g.10gb.me.nvidia.com"}
    assert found.classes[0]["spec"]["extendedResourceName"] == "nvidia.com/mig-1g.10gb.me"


@pytest.mark.parametrize(("renamed", "resource"), [("true", "gpu.shared"), ("false", "gpu")])
def test_a_replica_of_time_slicing_is_a_share_without_memory(renamed: str, resource: str) -> None:
    """As many shares fit as there were replicas, whatever memory their programs use."""
    found = migrated(pod(container(gpu=1), before=SHARED % renamed).replace("gpu: 1", f"{resource}: 1"))
    (request,) = requests(found)
    assert request["exactly"]["capacity"] == {"requests": {"memory": "1Mi"}}
    assert request["exactly"]["selectors"][0]["cel"]["expression"].endswith('.sharingStrategy == "TimeSlicing"')


@pytest.mark.parametrize(("default", "form"), [("shared", "capacity"), ("plain", "deviceClassName")])
def test_where_only_some_configs_share_the_default_one_decides(default: str, form: str) -> None:
    data = {"shared": SHARED % "false", "plain": "version: v1\nflags: {}\n"}
    maps = yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data})
    policy = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: c}\n"
    policy += f"spec: {{devicePlugin: {{config: {{name: c, default: {default}}}}}}}\n"
    found = migrated(pod(container(gpu=1), before=f"{maps}---\n{policy}"))
    assert list(requests(found)[0]["exactly"])[-1] == form
    assert any("is a share in the configs shared and a GPU in plain" in hint for hint in found.hints)


def test_beside_a_renamed_share_the_gpu_is_whole() -> None:
    found = migrated(pod(container(gpu=1), before=SHARED % "true"))
    assert requests(found)[0]["exactly"] == {"deviceClassName": "gpu.nvidia.com"}


def test_a_share_of_mps_has_its_part_of_memory_and_compute() -> None:
    found = migrated(pod(container(gpu=1), before=MPS), gpu_memory_mib=40960)
    amounts = requests(found)[0]["exactly"]["capacity"]["requests"]
    assert amounts == {"memory": f"{(40960 - 1024 - 64) // 4}Mi", "computePercent": "25"}


@pytest.mark.parametrize(
    ("resource", "count", "before", "memory", "reason"),
    [
        ("gpu", 2, MPS, 40960, "failRequestsGreaterThanOne"),  # under MPS it refuses more than one by default
        ("gpu", 1, MPS, 0, "--gpu-memory"),  # a limit that is guessed would end programs
        ("mig-1g.10gb.shared", 1, "", 0, "shares of MIG devices need a claim"),
        ("mig-1c.3g.20gb", 1, "", 0, "compute instances smaller"),
        ("gpu-memory", 1, "", 0, "is not a resource for whole GPUs"),
    ],
)
def test_untranslatable_resource_is_kept(resource: str, count: int, before: str, memory: int, reason: str) -> None:
    text = pod(container(gpu=count), before=before).replace("nvidia.com/gpu:", f"nvidia.com/{resource}:")
    found = migrated(text, gpu_memory_mib=memory)
    assert found.workloads == []
    assert any("not carried over" in each and reason in each for each in said(found, f'["nvidia.com/{resource}"]'))


@pytest.mark.parametrize(
    ("limits", "requests", "reason"),
    [
        ({}, {"nvidia.com/gpu": 1}, "has no limit"),
        ({"nvidia.com/gpu": 2}, {"nvidia.com/gpu": 1}, "is not its limit of 2"),
        ({"nvidia.com/gpu": 1}, {"nvidia.com/gpu": "1000m"}, ""),
        ({"nvidia.com/gpu": 1}, {"cpu": 1}, ""),
    ],
)
@pytest.mark.parametrize("keep", [False, True])
def test_amounts_that_the_api_server_refuses_are_invalid(
    limits: dict[str, object], requests: dict[str, object], reason: str, keep: bool
) -> None:
    main = {"name": "main", "image": "ubuntu:24.04", "resources": {"limits": limits, "requests": requests}}
    found = migrated(pod(main), keep=keep)
    assert (found.workloads == []) is bool(reason or keep)
    told = [each for each in said(found, '["nvidia.com/gpu"]') if "not carried over: invalid" in each]
    assert [reason in each for each in told] == [True] * (len(limits) + 1 if reason else 0)


def test_time_sliced_shares_note_missing_memory_limit() -> None:
    assert (
        "shares limit memory" in said(migrated(pod(container(gpu=1), before=SHARED % "false")), '["nvidia.com/gpu"]')[0]
    )


def test_product_label_with_profile_selects_mig_device() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.memory": "4864"}
    found = migrated(pod(container(gpu=1), nodeSelector=labels))
    exactly = requests(found)[0]["exactly"]
    assert exactly["deviceClassName"] == "mig-1g.5gb.nvidia.com"
    assert len(exactly["selectors"]) == 2
    assert "nodeSelector" not in spec_of(found)


@pytest.mark.parametrize(("spec", "is_hinted"), [("memory", True), ("product", False), ("preferred", False)])
def test_pods_that_keep_labels_are_hinted(spec: str, is_hinted: bool) -> None:
    """A share has no selector for GPU memory: the pod needs GPU Feature Discovery."""
    term = {"matchExpressions": [{"key": "nvidia.com/gpu.count", "operator": "Exists"}]}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": term}]}
    specs: dict[str, dict[str, Any]] = {
        "memory": {"nodeSelector": {"nvidia.com/gpu.memory": "40960"}},
        "product": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"}},
        "preferred": {"affinity": {"nodeAffinity": preferred}},
    }
    found = migrated(pod(container(gpu=1), before=MPS, **specs[spec]), gpu_memory_mib=40960)
    assert len(found.workloads) == 1
    assert any("stay pending on nodes without it" in hint for hint in found.hints) is is_hinted


def test_labels_that_no_device_has_stay() -> None:
    selector = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.family": "hopper"}
    found = migrated(pod(container(gpu=1), nodeSelector=selector))
    assert spec_of(found)["nodeSelector"] == {"nvidia.com/gpu.count": "8"}
    assert len(requests(found)[0]["exactly"]["selectors"]) == 1


ZONE, HOPPER = ("zone", "In", ["a"]), ("nvidia.com/gpu.family", "In", ["hopper"])
AMPERE = [("nvidia.com/gpu.memory", "Gt", ["70000"]), ("nvidia.com/gpu.compute.major", "In", ["8"])]


@pytest.mark.parametrize(
    ("terms", "kept"),
    [([[HOPPER], AMPERE], None), ([[ZONE, HOPPER], [ZONE, *AMPERE]], affinity([ZONE]))],
    ids=["GPUs alone", "the same zone, which stays"],
)
def test_alternatives_of_gpus_become_one_selector(terms: list[list[tuple[str, str, list[str]]]], kept: object) -> None:
    found = migrated(pod(container(gpu=1), affinity=affinity(*terms)))
    (selector,) = requests(found)[0]["exactly"]["selectors"]
    assert selector["cel"]["expression"].count(" || ") == 1
    assert spec_of(found).get("affinity") == kept


def test_alternatives_that_mix_nodes_and_gpus_stay() -> None:
    found = migrated(pod(container(gpu=1), affinity=affinity([ZONE], [HOPPER])))
    assert "affinity" in spec_of(found)
    assert "selectors" not in requests(found)[0]["exactly"]
    assert any("mix GPU labels" in note.message for note in found.notes)


def test_preferences_become_alternatives_in_their_order() -> None:
    (template,) = [each for each in of_inputs("workloads").templates if each["metadata"]["name"].startswith("gpus-2")]
    main = next(each for each in template["spec"]["spec"]["devices"]["requests"] if each["name"] == "main")
    assert [each["name"] for each in main["firstAvailable"]] == ["preferred-1", "preferred-2", "any"]
    last = [each["selectors"][-1]["cel"]["expression"] for each in main["firstAvailable"][:2]]
    assert ["== 9" in last[0], "== 8" in last[1]] == [True, True]


def test_settings_for_nvidia_runtime_are_removed() -> None:
    spec = made("workloads", "Deployment")["spec"]["template"]["spec"]
    assert "runtimeClassName" not in spec
    names = [each["name"] for each in spec["containers"][0]["env"]]
    assert names == ["NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "MODEL"]


def test_a_pod_that_sees_all_gpus_without_asking_stays_and_is_named() -> None:
    found = of_inputs("workloads")
    assert not any(value["metadata"]["name"] == "monitor" for _, value in found.workloads)
    assert any("adminAccess" in note.message and note.object == "DaemonSet monitor" for note in found.notes)


def test_pods_in_objects_of_other_kinds_are_found() -> None:
    worker = made("workloads", "PyTorchJob")["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    assert worker["resourceClaims"] == [{"name": "gpu", "resourceClaimTemplateName": "gpu-x8"}]


def test_server_set_fields_are_omitted() -> None:
    """A Job with the selector of another is refused."""
    job = made("workloads", "Job")
    assert "selector" not in job["spec"]
    assert "status" not in job
    assert job["metadata"] == {"name": "once", "labels": {"keep": "me"}}


def test_workloads_can_stay_where_classes_have_their_resources() -> None:
    one = pod(container(gpu=1))
    found = migrated(f"{one}---\n{one.replace('gpu: 1', 'gpu.shared: 1')}", keep=True)
    assert len(found.workloads) == 1
    assert found.values == {"eviction": {"enabled": True}}
    assert any("1 workloads stay unchanged. They need Kubernetes 1.36" in hint for hint in found.hints)


def test_a_kept_mig_pod_has_its_class() -> None:
    found = migrated(pod(container(gpu=1)).replace("nvidia.com/gpu", "nvidia.com/mig-2g.20gb"), keep=True)
    assert (found.workloads, [each["metadata"]["name"] for each in found.classes]) == ([], ["mig-2g.20gb.nvidia.com"])


def test_a_quota_counts_claims_by_class() -> None:
    hard = made("quotas", "ResourceQuota")["spec"]["hard"]
    assert hard["gpu.nvidia.com.deviceclass.resource.k8s.io/devices"] == "8"
    assert hard["mig-1g.10gb.nvidia.com.deviceclass.resource.k8s.io/devices"] == "4"
    assert hard["requests.nvidia.com/gpu"] == "8"
    # A default of a limit range goes.
    (limits,) = made("quotas", "LimitRange")["spec"]["limits"]
    assert limits == {"type": "Container", "default": {"cpu": "1"}, "max": {"memory": "64Gi"}}

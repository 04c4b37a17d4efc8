"""Expectations of examples: their grammar, and that each of them can fail."""

from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.published.listing import observed_devices
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.demo.expectations import parse_expectation, read_expectations, unmet
from dra_driver.sim.demo.requirements import Requirements, group_examples, read_requirements
from dra_driver.sim.loop import StoreClient
from tests.fakes.dra_objects import allocated, claim, gpu, node, resource_slice
from tests.harness.raising import fails

UUIDS = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111")


MIG = "MIG-22222222-2222-2222-2222-22222222222"


def line(index: int, uuid: str) -> str:
    return f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: {uuid})"


@pytest.fixture
def store() -> Store:
    store = Store()
    store.create(NODES, {**node("a"), "spec": {}})
    store.create(RESOURCE_SLICES, resource_slice("a", *[gpu(f"gpu-{i}", uuid=uuid) for i, uuid in enumerate(UUIDS)]))
    return store


def partition(name: str, *, profile: str = "1g.10gb", parent: str = UUIDS[1], uuid: str = "") -> Obj:
    """A published MIG device of the second GPU; one with a UUID exists."""
    return gpu(name, type="mig", profile=profile, parentUUID=parent, **({"uuid": uuid} if uuid else {}))


def cut(*partitions: tuple[str, str], parent: str = UUIDS[1]) -> str:
    """The log of a container with these partitions (profile, last digit of the UUID)."""
    lines = [f"  MIG {profile}     Device  {at}: (UUID: {MIG}{end})" for at, (profile, end) in enumerate(partitions)]
    return "\n".join([line(0, parent), *lines])


def create_pod(store: Store, name: str, *containers: str, **spec: object) -> Obj:
    listed = [{"name": each, "image": "i"} for each in containers]
    body = {"metadata": {"name": name}, "spec": {"containers": listed, **spec}}
    return store.create(PODS, body, namespace="default")


def set_phase(store: Store, pod: Obj, phase: str) -> Obj:
    ready = "True" if phase == "Running" else "False"
    pod["status"] = {"phase": phase, "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": None}]}
    return store.update_status(PODS, pod)


def run_pod(store: Store, name: str, *seen: str, granted: tuple[str, ...] = ("gpu-0",), phase: str = "Running") -> None:
    """A pod whose container's log lists ``seen`` and whose claim was allocated ``granted``."""
    made = store.create(RESOURCE_CLAIMS, claim(name), namespace="default")
    store.update_status(RESOURCE_CLAIMS, {**made, **{"status": allocated(made, *granted, node_name="a")["status"]}})
    pod = create_pod(store, name, "main", resourceClaims=[{"name": "gpu", "resourceClaimName": name}])
    set_phase(store, pod, phase)
    listed = [uuid if uuid.startswith("GPU ") else line(i, uuid) for i, uuid in enumerate(seen)]
    store.logs.append("default", name, "main", "\n".join(listed))


def complaint(store: Store, text: str) -> str | None:
    return unmet([parse_expectation(text)], StoreClient(store), "default")


@pytest.mark.parametrize(
    "text",
    [
        "", "pod/p Running", "pod/p running sees 1 GPU", "pod/p Running sees ", "pod/p Running sees 1 GPU and ",
        "pod/p Running sees 1 GPU2 MIG devices", "pod/p Running sees  and 2 MIG devices", "pods a same GPU",
        "pods a b same MIG devices", "container p logs x", "pod/p logs ", "job/j Running",
    ],
)  # fmt: skip
def test_typing_mistakes_are_errors(text: str) -> None:
    with fails(ConfigurationError, "UnknownExpectation"):
        parse_expectation(text)


def test_a_file_without_expectations_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("# expected: nothing\nkind: Pod\n")
    with pytest.raises(ConfigurationError, match="no '# expect:' line"):
        read_expectations(tmp_path / "x.yaml")
    (tmp_path / "x.yaml").write_text("# expect:\nkind: Pod\n")
    with fails(ConfigurationError, "UnknownExpectation", match="''"):
        read_expectations(tmp_path / "x.yaml")


def test_sees_counts_and_compares_with_the_allocation(store: Store) -> None:
    run_pod(store, "good", UUIDS[0])
    run_pod(store, "wrong", UUIDS[1])
    run_pod(store, "many", *UUIDS)
    run_pod(store, "starting", UUIDS[0], phase="Pending")
    assert complaint(store, "pod/good Running sees 1 GPU") is None
    assert "its claims were allocated" in (complaint(store, "pod/wrong Running sees 1 GPU") or "")
    assert "see 2 GPUs, expected 1" in (complaint(store, "pod/many Running sees 1 GPU") or "")
    assert "it is Pending" in (complaint(store, "pod/starting Running sees 1 GPU") or "")
    assert "does not exist" in (complaint(store, "pod/none Running sees 1 GPU") or "")


def test_pending_needs_the_schedulers_condition(store: Store) -> None:
    run_pod(store, "p", phase="Pending")
    assert complaint(store, "pod/p Pending") is not None
    pod = store.get(PODS, "p", "default")
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "lastTransitionTime": None}]
    store.update_status(PODS, pod)
    assert complaint(store, "pod/p Pending") is None


def test_same_and_different(store: Store) -> None:
    run_pod(store, "a", UUIDS[0])
    run_pod(store, "b", UUIDS[0])
    run_pod(store, "c", UUIDS[1])
    run_pod(store, "blind")
    assert complaint(store, "pods a b same GPU") is None
    assert complaint(store, "pods a c different GPUs") is None
    assert complaint(store, "containers a/main b/main same GPU") is None
    assert "a sees" in (complaint(store, "pods a c same GPU") or "")
    assert "a sees" in (complaint(store, "pods a b different GPUs") or "")
    assert "blind see no GPU" in (complaint(store, "pods a blind different GPUs") or "")


def test_only_whole_lines_of_nvidia_smi_count() -> None:
    """A UUID inside another line is not a GPU that the container sees."""
    log = f"hello {UUIDS[0]}\n{line(0, UUIDS[1])}\nGPU 1: broken (UUID: {UUIDS[0]}) trailing\n"
    assert observed_devices(log).listed == (UUIDS[1],)


@pytest.fixture
def parts(store: Store) -> Store:
    parts = [partition("m0"), partition("m1"), partition("m2", profile="3g.40gb"), partition("m3", uuid=f"{MIG}9")]
    store.create(RESOURCE_SLICES, resource_slice("a", *parts, name="a-mig"))
    return store


@pytest.mark.parametrize(
    ("seen", "granted", "said"),
    [
        (cut(("1g.10gb", "1")), ("m0",), None),
        (cut(("1g.10gb", "1"), ("3g.40gb", "2")), ("m0", "m2"), None),
        (cut(("1g.10gb", "9")), ("m3",), None),
        (cut(("1g.10gb", "1")), ("m3",), "its claims were allocated [1g.10gb of"),
        (cut(("3g.40gb", "1")), ("m0",), "see the MIG devices [3g.40gb of"),
        (cut(("1g.10gb", "1"), parent=UUIDS[0]), ("m0",), "see the MIG devices [1g.10gb of GPU-0"),
        (cut(("1g.10gb", "1"), ("1g.10gb", "2")), ("m0",), "see 2 MIG devices, expected 1"),
        (cut(), ("m0",), "see 1 GPUs, expected 0"),
    ],
)
def test_partitions_are_compared_by_parent_profile_and_uuid(
    parts: Store, seen: str, granted: tuple[str, ...], said: str | None
) -> None:
    """A device that does not exist yet has no UUID in its slice, so parent and profile must match, and no more."""
    run_pod(parts, "p", seen, granted=granted)
    found = complaint(parts, f"pod/p Running sees {len(granted)} MIG device{'s' if len(granted) > 1 else ''}")
    assert found is None if said is None else said in (found or "")


def test_partitions_compared_between_pods(parts: Store) -> None:
    run_pod(parts, "a", cut(("1g.10gb", "1")), granted=("m0",))
    run_pod(parts, "b", cut(("1g.10gb", "2")), granted=("m1",))
    run_pod(parts, "whole", UUIDS[0])
    assert complaint(parts, "pods a b same GPU") is None
    assert complaint(parts, "pods a b different MIG devices") is None
    assert "a/main sees MIG-" in (complaint(parts, "containers a/main b/main same MIG device") or "")
    assert "whole see no MIG device" in (complaint(parts, "pods a whole different MIG devices") or "")


def test_a_claim_for_extended_resources_counts(store: Store) -> None:
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    spec = {"containers": [{"name": "main", "image": "i", "resources": resources}]}
    pod = store.create(PODS, {"metadata": {"name": "p"}, "spec": spec}, namespace="default")
    made = store.create(RESOURCE_CLAIMS, claim("made"), namespace="default")
    store.update_status(RESOURCE_CLAIMS, {**made, "status": allocated(made, "gpu-0", node_name="a")["status"]})
    store.logs.append("default", "p", "main", line(0, UUIDS[0]))
    request = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "gpu"}
    pod = set_phase(store, pod, "Running")
    assert "were allocated []" in (complaint(store, "pod/p Running sees 1 GPU") or "")
    pod["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "made", "requestMappings": [request]}
    store.update_status(PODS, pod)
    assert complaint(store, "pod/p Running sees 1 GPU") is None


def test_log_lines_are_whole_lines(store: Store) -> None:
    """10240 does not match 1024; every container of a pod, or the one named, must have the line."""
    create_pod(store, "p", "main", "side")
    store.logs.append("default", "p", "main", "GPU 0\nCUDA_X=10240M\n")
    store.logs.append("default", "p", "side", "GPU 0\n")
    assert complaint(store, "container p/main logs CUDA_X=10240M") is None
    assert "the log of main lacks the line" in (complaint(store, "container p/main logs CUDA_X=1024") or "")
    assert "the log of side lacks the line" in (complaint(store, "pod/p logs CUDA_X=10240M") or "")
    assert complaint(store, "pod/p logs GPU 0") is None
    assert "does not exist" in (complaint(store, "pod/q logs GPU 0") or "")


def example(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(["# What it shows.", *lines, "# expect: pod/p Pending", "kind: Pod", ""]))
    return path


def test_nodes_and_policies_are_read_from_the_header(tmp_path: Path) -> None:
    assert (read_requirements(example(tmp_path, "none.yaml")), str(Requirements())) == (Requirements(), "")
    (tmp_path / "policies").mkdir()
    for name in ("policies/mps.yaml", "policies/b.yaml", "hardware.yaml"):
        (tmp_path / name).write_text("")
    cluster = "# cluster: gpu-a=4xa100-sxm4-40gb+mig gpu-b=hardware.yaml"
    policies = ("# policy: policies/mps.yaml", "#policy:policies/b.yaml")
    needs = read_requirements(example(tmp_path, "x.yaml", cluster, *policies))
    assert needs.nodes == (("gpu-a", "4xa100-sxm4-40gb+mig"), ("gpu-b", str(tmp_path / "hardware.yaml")))
    assert needs.policies == (tmp_path / "policies/mps.yaml", tmp_path / "policies/b.yaml")
    assert str(needs).endswith("hardware.yaml, policy mps.yaml, policy b.yaml")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["# cluster:"], "without a node"),
        (["# cluster: gpu-a"], "'gpu-a' is not a node"),
        (["# cluster: a=1xl4-24gb a=1xl4-24gb"], "node a is given twice"),
        (["# cluster: a=1xl4-24gb", "# cluster: b=1xl4-24gb"], "more than one '# cluster:' line"),
        (["# cluster: a=none.yaml"], "names the file 'none.yaml'"),
        (["# policy: none.yaml"], "names the file 'none.yaml'"),
        (["# policy:"], "names the file ''"),
    ],
)
def test_invalid_requirements_are_errors(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        read_requirements(example(tmp_path, "x.yaml", *lines))
    assert "x.yaml" in str(refused.value)


def test_examples_are_grouped_by_requirements(tmp_path: Path) -> None:
    mig = "# cluster: gpu-a=1xh100-sxm5-80gb"
    paths = [
        example(tmp_path, "a.yaml", mig),
        example(tmp_path, "b.yaml"),
        example(tmp_path, "c.yaml", "# cluster: gpu-a=2xh100-sxm5-80gb"),
        example(tmp_path, "d.yaml", mig),
    ]
    names = [[path.name for path in members] for members in group_examples(paths).values()]
    assert names == [["b.yaml"], ["a.yaml", "d.yaml"], ["c.yaml"]]
    assert not group_examples([])

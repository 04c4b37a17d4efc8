"""The statements of examples: their grammar, and that each can turn out false."""

from pathlib import Path

import pytest

from dra_driver.errors import ConfigurationError
from dra_driver.sim import expect
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, JOBS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.client import StoreClient
from dra_driver.sim.store import Store
from tests.fakes.dra_objects import allocated, claim, gpu, node, resource_slice

UUIDS = ("GPU-00000000-0000-0000-0000-000000000000", "GPU-11111111-1111-1111-1111-111111111111")


def line(index: int, uuid: str) -> str:
    return f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: {uuid})"


@pytest.fixture
def store() -> Store:
    store = Store()
    store.create(NODES, {**node("a"), "spec": {}})
    store.create(RESOURCE_SLICES, resource_slice("a", *[gpu(f"gpu-{i}", uuid=uuid) for i, uuid in enumerate(UUIDS)]))
    return store


def run_pod(store: Store, name: str, *seen: str, granted: tuple[str, ...] = ("gpu-0",), phase: str = "Running") -> None:
    """A pod whose container's log lists ``seen`` and whose claim holds ``granted``."""
    made = store.create(RESOURCE_CLAIMS, claim(name), namespace="default")
    store.update_status(RESOURCE_CLAIMS, {**made, **{"status": allocated(made, *granted, node_name="a")["status"]}})
    spec = {
        "containers": [{"name": "main", "image": "i"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
    }
    pod = store.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")
    ready = "True" if phase == "Running" else "False"
    pod["status"] = {"phase": phase, "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": None}]}
    store.update_status(PODS, pod)
    store.logs.append("default", name, "main", "\n".join(line(i, uuid) for i, uuid in enumerate(seen)))


def complaint(store: Store, text: str) -> str | None:
    return expect.unmet([expect.parse(text)], StoreClient(store), "default")


@pytest.mark.parametrize(
    "text",
    [
        "pod/p Running sees 1 GPU",
        "pod/p Running sees 2 GPUs",
        "pod/p Pending",
        "job/j Complete",
        "deployment/d Available",
        "pods a b same GPU",
        "pods a b c different GPUs",
        "containers p/a p/b same GPU",
    ],
)
def test_grammar(text: str) -> None:
    """Every form of the grammar is read as what it says."""
    assert expect.parse(text).text == text


@pytest.mark.parametrize("text", ["", "pod/p Running", "pod/p running sees 1 GPU", "pods a same GPU", "job/j Running"])
def test_typing_mistakes_are_errors(text: str) -> None:
    """A statement that nobody can read must not pass as met."""
    with pytest.raises(ConfigurationError, match="cannot read the expectation"):
        expect.parse(text)


def test_a_file_must_state_something(tmp_path: Path) -> None:
    """An example without a statement would always pass."""
    (tmp_path / "x.yaml").write_text("# expected: nothing\nkind: Pod\n")
    with pytest.raises(ConfigurationError, match="no '# expect:' line"):
        expect.read(tmp_path / "x.yaml")


def test_sees_counts_and_compares_with_what_was_granted(store: Store) -> None:
    """The right number is not enough: it has to be the GPU that the claim holds."""
    run_pod(store, "good", UUIDS[0])
    run_pod(store, "wrong", UUIDS[1])
    run_pod(store, "many", *UUIDS)
    run_pod(store, "starting", UUIDS[0], phase="Pending")
    assert complaint(store, "pod/good Running sees 1 GPU") is None
    assert "its claims were granted" in (complaint(store, "pod/wrong Running sees 1 GPU") or "")
    assert "see 2 GPUs, expected 1" in (complaint(store, "pod/many Running sees 1 GPU") or "")
    assert "it is Pending" in (complaint(store, "pod/starting Running sees 1 GPU") or "")
    assert "no such pod" in (complaint(store, "pod/none Running sees 1 GPU") or "")


def test_pending_means_that_the_scheduler_said_so(store: Store) -> None:
    """A pod that nobody has looked at yet is not one that stays Pending."""
    run_pod(store, "p", phase="Pending")
    assert complaint(store, "pod/p Pending") is not None
    pod = store.get(PODS, "p", "default")
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "lastTransitionTime": None}]
    store.update_status(PODS, pod)
    assert complaint(store, "pod/p Pending") is None


def test_same_and_different(store: Store) -> None:
    """Neither holds for pods that see nothing."""
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


@pytest.mark.parametrize(
    ("kind", "text", "done"),
    [
        (JOBS, "job/x Complete", {"conditions": [{"type": "Complete", "status": "True"}]}),
        (
            DEPLOYMENTS,
            "deployment/x Available",
            {"conditions": [{"type": "Available", "status": "True"}], "availableReplicas": 1},
        ),
    ],
)
def test_workloads(store: Store, kind: object, text: str, done: Obj) -> None:
    """A workload is done when its own condition says so."""
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
    spec: Obj = {"template": template}
    if kind is JOBS:
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec["selector"] = {"matchLabels": {"a": "b"}}
    assert complaint(store, text) is not None
    made = store.create(kind, {"metadata": {"name": "x"}, "spec": spec}, namespace="default")  # type: ignore[arg-type]
    assert complaint(store, text) is not None
    store.update_status(kind, {**made, "status": done})  # type: ignore[arg-type]
    assert complaint(store, text) is None


def test_only_whole_lines_of_nvidia_smi_count() -> None:
    """A UUID that a program mentions somewhere is not a GPU that it sees."""
    log = f"hello {UUIDS[0]}\n{line(0, UUIDS[1])}\nGPU 1: broken (UUID: {UUIDS[0]}) trailing\n"
    assert expect.seen_gpus(log) == (UUIDS[1],)

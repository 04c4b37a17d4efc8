"""Reading claims, well-formed and malformed, and devices of wire objects."""

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import (
    ApiUnreachableError,
    ClaimError,
    ClaimNotAllocatedError,
    ClaimReplacedError,
    KubernetesApiError,
    NotFoundError,
)
from dra_driver.core.model.claim import AllocatedClaim, AllocatedDevice, ClaimRef, OpaqueConfig
from dra_driver.core.model.ids import ClaimUid, DeviceName, PoolName
from dra_driver.kube.claims import ApiClaimReader, allocated_claim
from dra_driver.kube.devices import (
    attribute_of,
    attribute_text,
    generation_of,
    is_pod,
    newest_slices,
    pool_of,
    results_of,
    users_of,
)
from tests.harness.raising import fails

DRIVER = "gpu.nvidia.com"
REF = ClaimRef(namespace="ns", name="c", uid=ClaimUid("0b1f1c1e-0000-4000-8000-000000000001"))
SHARE = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
OURS = {"request": "mon", "driver": DRIVER, "pool": "node-a/gpu.nvidia.com", "device": "gpu-1"}


def claim() -> dict[str, Any]:
    return {
        "metadata": {"name": "c", "namespace": "ns", "uid": REF.uid},
        "spec": {},
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {**OURS, "request": "gpu/big", "device": "gpu-0"},
                        {"request": "nic", "driver": "dra.net", "pool": "node-a", "device": "eth0"},
                        {**OURS, "adminAccess": True, "shareID": SHARE, "consumedCapacity": {"memory": "10Gi"}},
                    ],
                    "config": [
                        {"source": "FromClass", "opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}},
                        {"source": "FromClaim", "requests": ["gpu"], "opaque": {"driver": "other", "parameters": 7}},
                        {
                            "source": "FromClaim",
                            "requests": ["gpu/big"],
                            "opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig", "sharing": {}}},
                        },
                    ],
                }
            }
        },
    }


def changed(path: str, value: Any) -> dict[str, Any]:
    """The claim above with one field replaced (or, for ``...``, removed)."""
    document = copy.deepcopy(claim())
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    at: Any = document
    for key in parents:
        at = at[key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return document


OTHER = {"request": "r", "driver": "other", "pool": "p", "device": "d"}
RESULT = "status.allocation.devices.results.2"
CONFIG = "status.allocation.devices.config.2"


def test_reads_this_drivers_part_in_order() -> None:
    found = allocated_claim(claim(), REF, DRIVER)
    pool = PoolName("node-a/gpu.nvidia.com")
    assert found.results == (
        AllocatedDevice(request="gpu/big", driver=DRIVER, pool=pool, device=DeviceName("gpu-0")),
        AllocatedDevice(
            request="mon", driver=DRIVER, pool=pool, device=DeviceName("gpu-1"), admin_access=True, share_id=SHARE,
            consumed_capacity={"memory": "10Gi"},
        ),
    )  # fmt: skip
    assert found.configs == (
        OpaqueConfig(source="FromClass", requests=(), parameters={"kind": "GpuConfig"}),
        OpaqueConfig(source="FromClaim", requests=("gpu/big",), parameters={"kind": "GpuConfig", "sharing": {}}),
    )
    assert found.results[0].base_request == "gpu"


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("metadata.uid", "another", ClaimReplacedError),
        ("metadata.uid", ..., ClaimReplacedError),
        ("status", None, ClaimNotAllocatedError),
        ("status", ..., ClaimNotAllocatedError),
        ("status.allocation", None, ClaimNotAllocatedError),
        ("status.allocation.devices", {}, ClaimNotAllocatedError),
        ("status.allocation.devices.results", None, ClaimNotAllocatedError),
        ("status.allocation.devices.results", [], ClaimNotAllocatedError),
    ],
)
def test_a_replaced_or_unallocated_claim_has_an_error_of_its_own(path: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="ns/c"):
        allocated_claim(changed(path, value), REF, DRIVER)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("metadata", 7, "metadata: expected an object, got a number"),
        ("status", "x", "status: expected an object, got text"),
        ("status.allocation", [], "status.allocation: expected an object, got a list"),
        ("status.allocation.devices", "x", "status.allocation.devices: expected an object, got text"),
        ("status.allocation.devices.results", {}, "results: expected a list, got an object"),
        ("status.allocation.devices.results", [OTHER] * 33, "33 entries long', expected at most 32"),
        (RESULT, "x", "results[2]: expected an object, got text"),
        (f"{RESULT}.driver", 3, "results[2].driver: expected text, got a number"),
        (f"{RESULT}.request", ..., "results[2].request: missing"),
        (f"{RESULT}.request", "a/b/c", "expected a request name"),
        (f"{RESULT}.request", "../etc", "expected a request name"),
        (f"{RESULT}.pool", "", "results[2].pool is ''"),
        (f"{RESULT}.pool", "a//b", "expected a pool name"),
        (f"{RESULT}.pool", "p" * 300, "expected a string of 1 to 253"),
        (f"{RESULT}.device", "GPU_0", "expected a DNS label"),
        (f"{RESULT}.device", "../../passwd", "expected a DNS label"),
        (f"{RESULT}.device", "gpu-0\n", "expected a DNS label"),
        (f"{RESULT}.device", ["gpu-0"], "results[2].device: expected text, got a list"),
        (f"{RESULT}.adminAccess", "true", "adminAccess: expected true or false, got text"),
        (f"{RESULT}.shareID", "not-a-uuid", "expected a UUID in lower case"),
        (f"{RESULT}.shareID", SHARE.upper(), "expected a UUID in lower case"),
        (f"{RESULT}.shareID", 5, "shareID: expected text, got a number"),
        (f"{RESULT}.consumedCapacity", [], "consumedCapacity: expected an object, got a list"),
        (f"{RESULT}.consumedCapacity", {"memory": 5}, "expected capacity names with quantities"),
        (f"{RESULT}.consumedCapacity", {"memory": "9" * 4000}, "expected capacity names with quantities"),
        (f"{RESULT}.consumedCapacity", {"a=b": "1"}, "expected capacity names with quantities"),
        (f"{RESULT}.consumedCapacity", {f"c{n}": "1" for n in range(33)}, "at most 32"),
        ("status.allocation.devices.config", "x", "config: expected a list, got text"),
        ("status.allocation.devices.config", [{"source": "FromClass"}] * 65, "at most 64"),
        (f"{CONFIG}.source", "FromNowhere", "expected FromClass or FromClaim"),
        (f"{CONFIG}.requests", "gpu", "requests: expected a list, got text"),
        (f"{CONFIG}.requests", [1], "requests[0]: expected text, got a number"),
        (f"{CONFIG}.opaque", [], "opaque: expected an object, got a list"),
        (f"{CONFIG}.opaque.driver", None, "opaque.driver: missing"),
        (f"{CONFIG}.opaque.parameters", None, "parameters is None, expected an object"),
        (f"{CONFIG}.opaque.parameters", "x", "parameters is 'x', expected an object"),
        (f"{CONFIG}.opaque.parameters", {"x": "é" * 6000}, "expected at most 10240"),
    ],
)  # fmt: skip
def test_a_malformed_claim_is_refused_with_the_path_of_the_field(path: str, value: Any, expected: str) -> None:
    with pytest.raises(ClaimError) as caught:
        allocated_claim(changed(path, value), REF, DRIVER)
    assert str(caught.value).startswith(f"claim {REF} is malformed: ")
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 400


def test_deeply_nested_parameters_are_refused() -> None:
    """A thousand brackets fit into ten KiB and would exhaust the stack of recursive code."""
    deep: Any = {}
    for _ in range(900):
        deep = {"a": deep}
    with pytest.raises(ClaimError, match="nested at most 32"):
        allocated_claim(changed(f"{CONFIG}.opaque.parameters", deep), REF, DRIVER)
    with fails(ClaimError, "Malformed", match=r"results\[2\]\.device"):
        allocated_claim(changed(f"{RESULT}.device", deep), REF, DRIVER)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([RESULT, f"{RESULT}.device", CONFIG, "status", "status.allocation.devices", "metadata"]), _json)
def test_no_value_anywhere_breaks_more_than_the_claim(path: str, value: Any) -> None:
    with contextlib.suppress(ClaimError):
        assert allocated_claim(changed(path, value), REF, DRIVER).results


class Api:
    """Answers one GET."""

    def __init__(self, answer: dict[str, Any] | Exception) -> None:
        self.answer = answer
        self.paths: list[str] = []
        self.within_s: float | None = None

    def get(self, path: str, query: Any = None, *, within_s: float | None = None) -> dict[str, Any]:
        self.paths.append(path)
        self.within_s = within_s
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def send_all(
        self, paths: Sequence[str], *, within_s: float | None = None
    ) -> Callable[[], list[dict[str, Any] | KubernetesApiError]]:
        self.paths += paths
        answer = self.answer
        assert isinstance(answer, dict | KubernetesApiError)
        return lambda: [answer] * len(paths)


@pytest.mark.parametrize(("annotated", "expected"), [("gpu", "gpu"), ("", None), ("../../etc", None), ("a.b", None)])
def test_name_in_the_pod_is_read_only_if_it_is_a_label(annotated: str, expected: str | None) -> None:
    """Users can write the annotation, and the name becomes part of a path in containers."""
    document = claim()
    document["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": annotated}
    assert allocated_claim(document, REF, DRIVER).pod_claim == expected
    assert allocated_claim(claim(), REF, DRIVER).pod_claim is None


def test_the_reader_gets_the_claim_by_its_quoted_name() -> None:
    api = Api(claim())
    assert ApiClaimReader(api, DRIVER).read(REF, within_s=3.5).ref == REF
    assert api.within_s == 3.5  # the kubelet waits 45 s for a whole call with all its claims
    evil = ClaimRef(namespace="ns", name="../../pods/x?y", uid=REF.uid)
    ApiClaimReader(api, DRIVER).read(evil)
    assert api.paths == [
        "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/c",
        "/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/..%2F..%2Fpods%2Fx%3Fy",
    ]
    with pytest.raises(ClaimError, match="not the name"):
        ApiClaimReader(api, DRIVER).read(ClaimRef(namespace="..", name="c", uid=REF.uid))


def test_a_claim_that_is_gone_was_replaced_but_an_unknown_api_is_not() -> None:
    """404 for a claim concerns its pod; 404 for the whole API group concerns the cluster."""
    with fails(ClaimReplacedError, claim=REF):
        ApiClaimReader(Api(NotFoundError("no", status=404, reason="NotFound")), DRIVER).read(REF)
    with pytest.raises(NotFoundError):
        ApiClaimReader(Api(NotFoundError("no such path", status=404)), DRIVER).read(REF)
    with pytest.raises(ApiUnreachableError):
        ApiClaimReader(Api(ApiUnreachableError("down")), DRIVER).read(REF)


def test_several_claims_are_read_at_once_and_each_gets_its_own_answer() -> None:
    other = ClaimRef(namespace="ns", name="other", uid=ClaimUid("f" * 8))
    bad = ClaimRef(namespace="", name="x", uid=ClaimUid("e" * 8))
    found = ApiClaimReader(Api(claim()), DRIVER).ask_all([REF, other, bad], within_s=2.0)()
    first = found[REF.uid]
    assert isinstance(first, AllocatedClaim)
    assert first.ref == REF
    assert isinstance(found[other.uid], ClaimReplacedError)
    gone = ApiClaimReader(Api(NotFoundError("no", status=404, reason="NotFound")), DRIVER).ask_all([REF])()
    assert isinstance(gone[REF.uid], ClaimReplacedError)


POD = {"resource": "pods", "name": "p", "uid": "u"}


def slice_(name: str, pool: str, generation: int | None, driver: str = "d") -> dict[str, Any]:
    made: dict[str, Any] = {"metadata": {"name": name}, "spec": {"driver": driver, "pool": {"name": pool}}}
    if generation is not None:
        made["spec"]["pool"]["generation"] = generation
    return made


@pytest.mark.parametrize(
    "claim", [{}, {"status": None}, {"status": {"allocation": None}}, {"status": {"allocation": {"devices": None}}}]
)
def test_claim_without_allocation_has_no_results(claim: dict[str, Any]) -> None:
    assert not results_of(claim)
    assert not users_of(claim)


def test_users_that_are_no_pods_are_told_apart() -> None:
    assert is_pod(POD)
    assert not is_pod({**POD, "apiGroup": "example.com"})
    assert not is_pod({**POD, "resource": "jobs"})


def test_newest_generation_of_each_pool_counts() -> None:
    """Pools of two drivers may have one name; the order stays."""
    old, new, other = slice_("old", "p", 1), slice_("new", "p", 2), slice_("other", "p", 1, driver="e")
    assert newest_slices([new, other, old]) == [new, other]
    assert pool_of(other) == ("e", "p")


def test_missing_generation_is_0() -> None:
    """A client may leave the default out: such a slice is older than all others of its pool, and valid alone."""
    missing, new = slice_("missing", "p", None), slice_("new", "p", 1)
    assert generation_of(missing) == 0
    assert newest_slices([missing, new]) == [new]
    assert newest_slices([missing]) == [missing]


@pytest.mark.parametrize("name", ["uuid", "gpu.nvidia.com/uuid"])
def test_attribute_is_found_with_and_without_its_domain(name: str) -> None:
    assert attribute_of({name: {"string": "GPU-1"}}, "gpu.nvidia.com", "uuid") == {"string": "GPU-1"}
    assert attribute_text({name: {"string": "GPU-1"}}, "gpu.nvidia.com", "uuid") == "GPU-1"
    assert attribute_text({name: {"int": 1}}, "gpu.nvidia.com", "uuid") == ""
    assert attribute_of({"example.com/uuid": {"string": "x"}}, "gpu.nvidia.com", "uuid") == {}
    assert attribute_of(None, "gpu.nvidia.com", "uuid") == {}

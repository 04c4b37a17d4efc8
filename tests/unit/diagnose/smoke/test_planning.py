"""Which kinds are tried on which nodes, and what is busy, with `explain`'s answer for `kubectl dra smoke`."""

from collections.abc import Sequence
from typing import Any

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import Layer, Status
from dra_driver.diagnose.smoke.objects import PodSettings, claim, job, labels_of, pod_of
from dra_driver.diagnose.smoke.planning import PRESENT_LABEL, ClusterView, Fit, SmokePlan, plan_of
from dra_driver.diagnose.smoke.report import SmokeOptions, TryKind, claim_spec, kinds_of
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.commands.smoke import fits_under
from tests.fakes.dra_objects import device_class, gpu
from tests.harness.raising import fails
from tests.unit.diagnose.smoke.fake_api import DRIVER, UUID, WHOLE, device, resource_slice, result

MIG = TryKind("mig", "1g.10gb")
SHARE = TryKind("shared", "MPS")
ROOM = {"cpu": "8", "memory": "64Gi", "pods": "110"}
Wire = dict[str, Any]


def partition(name: str = "gpu-0-mig-1g10gb-19-0") -> Wire:
    return gpu(name, type="mig", profile="1g.10gb", parentUUID=UUID)


def node(name: str, *, ready: str = "True", cordoned: bool = False, labelled: bool = True) -> Wire:
    labels = {PRESENT_LABEL: "true"} if labelled else {}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"unschedulable": cordoned},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": ROOM},
    }


def state(*nodes: Wire, slices: Sequence[Wire], claims: Sequence[Wire] = ()) -> ClusterState:
    classes = [device_class(f"{name}.nvidia.com", expression=f'device.driver == "{DRIVER}"') for name in ("gpu", "mig")]
    return ClusterState(nodes=nodes, slices=slices, claims=claims, classes=classes, server_version="v1.36.2")


def fits(_node: str, _kind: TryKind) -> Fit:
    return Fit(fits=True)


def planned(found: ClusterState, fit: Any = fits, **options: Any) -> SmokePlan:
    return plan_of(ClusterView(found, DRIVER), SmokeOptions(namespace="smoke", **options), fit)


def test_kinds_are_told_apart_by_type_profile_and_sharing() -> None:
    """Whole GPUs first; devices of unknown types are left out."""
    odd = {"name": "x", "attributes": {"type": {"string": "vgpu"}}}
    found = kinds_of([resource_slice(partition(), odd, device("gpu-1", sharingStrategy="MPS"), device())])
    assert list(found) == [WHOLE, MIG, SHARE]
    assert [str(kind) for kind in found] == ["whole GPU", "MIG 1g.10gb", "share (MPS)"]


def test_a_share_asks_for_the_least() -> None:
    """Of each capacity what its policy allows; nothing of one without a policy."""
    ranges = {
        "memory": {"value": "79Gi", "requestPolicy": {"validRange": {"min": "1Mi"}}},
        "computePercent": {"value": "100", "requestPolicy": {"validRange": {"min": "1"}}},
        "shares": {"value": "1", "requestPolicy": {"validValues": ["1"]}},
        "other": {"value": "3"},
    }
    spec = claim_spec(SHARE, {**device(), "capacity": ranges}, DRIVER)
    asked = spec["devices"]["requests"][0]["exactly"]["capacity"]["requests"]
    assert asked == {"memory": "64Mi", "computePercent": "1", "shares": "1"}


def test_all_nodes_tries_every_kind_on_every_node() -> None:
    """A GPU node that publishes nothing or is not ready is a failure, a cordoned one is left alone."""
    plan = planned(
        state(
            *(node("a"), node("b", ready="Unknown"), node("c"), node("d", cordoned=True), node("e", labelled=False)),
            slices=[resource_slice(device(), partition(), node=name) for name in ("a", "b", "d")],
        ),
        all_nodes=True,
    )
    assert plan.tries == {"a": [WHOLE, MIG]}
    assert [(item.node, item.status, item.finding.layer) for item in plan.settled] == [
        ("b", Status.FAIL, Layer.NODE),
        ("c", Status.FAIL, Layer.SLICES),
        ("d", Status.SKIPPED, None),
    ]


def test_a_cordoned_node_is_tried_when_it_is_named_and_older_generations_do_not_count() -> None:
    found = state(node("d", cordoned=True), slices=[resource_slice(device(), node="d")])
    assert planned(found, nodes=("d",)).tries == {"d": [WHOLE]}
    with fails(ConfigurationError, "NodeNotFound", node="x"):
        planned(found, nodes=("x",))
    # Older generations of a pool do not count.
    view = ClusterView(state(slices=[resource_slice(partition()), resource_slice(device(), generation=2)]), DRIVER)
    assert list(view.kinds("gpu-a", ("gpu", "mig", "shared"))) == [WHOLE]


def test_without_nodes_each_kind_is_tried_once() -> None:
    slices = [resource_slice(device(), partition(), node=name) for name in ("a", "b")]

    def fit(name: str, kind: TryKind) -> Fit:
        return Fit(fits=False, busy="its only GPU is allocated") if (name, kind) == ("a", WHOLE) else Fit(fits=True)

    plan = planned(state(node("a"), node("b"), slices=slices), fit)
    assert plan.tries == {"a": [MIG], "b": [WHOLE]}
    assert not plan.settled
    plan = planned(state(node("a"), slices=[resource_slice(device(), node="a")]), fit)
    assert not plan.tries
    assert [(item.node, item.finding.seen) for item in plan.settled] == [("a", "its only GPU is allocated")]


def test_the_number_of_nodes_can_be_limited() -> None:
    names = ("a", "b", "c")
    found = state(*map(node, names), slices=[resource_slice(device(), node=name) for name in names])
    plan = planned(found, all_nodes=True, most_nodes=2)
    assert list(plan.tries) == ["a", "b"]
    assert plan.notes == ["2 of 3 nodes (--max-nodes)"]


def fit_on(found: ClusterState, kind: TryKind = WHOLE, name: str = "gpu-a") -> Fit:
    view = ClusterView(found, DRIVER)
    body = job("dra-smoke-0-1", "0", name, PodSettings(namespace="smoke", image="x"))
    owner = {"metadata": {"name": "dra-smoke-0-1", "namespace": "smoke", "uid": ""}}
    wanted = claim(owner, "0", claim_spec(kind, device(), DRIVER))
    around = view.around(name, without=labels_of("0"))
    return fits_under(found)(around, pod_of(body), wanted, kind)


def held(*names: str, run: str = "") -> list[Wire]:
    labels = labels_of(run) if run else {}
    return [
        {
            "metadata": {"name": f"of-{name}", "namespace": "team", "labels": labels},
            "spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
            "status": {"allocation": {"devices": {"results": [result(name)]}}},
        }
        for name in names
    ]


def test_a_free_device_fits() -> None:
    """And what this run itself holds counts as free, because it is given back before the next try."""
    slices = [resource_slice(device(), device("gpu-1"))]
    assert fit_on(state(node("gpu-a"), slices=slices, claims=held("gpu-0"))).fits
    assert fit_on(state(node("gpu-a"), slices=slices, claims=held("gpu-0", "gpu-1", run="0"))).fits
    assert fit_on(state(slices=slices)).fits, "without the right to list nodes"


def test_allocated_and_tainted_devices_are_busy_and_a_missing_class_is_not() -> None:
    slices = [resource_slice(device(), device("gpu-1"), partition())]
    fit = fit_on(state(node("gpu-a"), slices=slices, claims=held("gpu-0", "gpu-1")))
    assert (fit.fits, fit.busy) == (False, "all 2 GPUs are allocated")
    ill = {**device(), "taints": [{"key": "gpu.dra-driver.io/drained", "effect": "NoSchedule"}]}
    fit = fit_on(state(node("gpu-a"), slices=[resource_slice(ill)]))
    assert fit.busy.startswith("not free: 1 tainted (")
    assert "gpu.dra-driver.io/drained" in fit.busy
    # A missing class is a failure, and not busy.
    found = state(node("gpu-a"), slices=[resource_slice(device())])
    fit = fit_on(ClusterState(nodes=found.nodes, slices=found.slices, server_version="v1.36.2"))
    assert (fit.fits, fit.busy) == (False, "")
    assert fit.answer.count("DeviceClass gpu.nvidia.com does not exist") == 1


def test_a_profile_is_found_beside_whole_gpus() -> None:
    """The selector works without the help of the class: a whole GPU has no profile, which would be an error of CEL."""
    found = state(node("gpu-a"), slices=[resource_slice(device(), partition())])
    assert fit_on(found, MIG).fits

"""`explain`'s answer for `kubectl dra smoke`: free, busy, or a failure."""

from dra_driver.diagnose.smoke.objects import PodSettings, claim, job, labels_of, pod_of
from dra_driver.diagnose.smoke.planning import ClusterView, Fit
from dra_driver.diagnose.smoke.report import TryKind, claim_spec
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.commands.smoke import fits_under
from tests.unit.diagnose.smoke.fake_api import DRIVER, WHOLE, device, resource_slice, result
from tests.unit.diagnose.smoke.test_planning import MIG, Wire, node, partition, state


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


def test_allocated_devices_are_busy() -> None:
    slices = [resource_slice(device(), device("gpu-1"), partition())]
    fit = fit_on(state(node("gpu-a"), slices=slices, claims=held("gpu-0", "gpu-1")))
    assert (fit.fits, fit.busy) == (False, "all 2 GPUs are allocated")


def test_tainted_devices_are_busy_with_their_taint() -> None:
    ill = {**device(), "taints": [{"key": "gpu.dra-driver.io/drained", "effect": "NoSchedule"}]}
    fit = fit_on(state(node("gpu-a"), slices=[resource_slice(ill)]))
    assert fit.busy.startswith("not free: 1 tainted (")
    assert "gpu.dra-driver.io/drained" in fit.busy


def test_a_missing_class_is_not_busy() -> None:
    found = state(node("gpu-a"), slices=[resource_slice(device())])
    fit = fit_on(ClusterState(nodes=found.nodes, slices=found.slices, server_version="v1.36.2"))
    assert (fit.fits, fit.busy) == (False, "")
    assert fit.answer.count("DeviceClass gpu.nvidia.com does not exist") == 1


def test_a_profile_is_found_beside_whole_gpus() -> None:
    """The selector works without the help of the class: a whole GPU has no profile, which would be an error of CEL."""
    found = state(node("gpu-a"), slices=[resource_slice(device(), partition())])
    assert fit_on(found, MIG).fits

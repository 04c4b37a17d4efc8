"""What slices publish and what policies may not name are the same words."""

from pathlib import Path

from dra_driver.config.rules import OWN_ATTRIBUTES
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.node.slices import ApiServerFeatures, build_devices
from tests.fakes.simulated_gpus import SimulatedBackend


def test_every_attribute_that_the_driver_publishes_is_its_own(tmp_path: Path) -> None:
    """Whole, shared, placements and a partition of another manager: no policy can overwrite their attributes."""
    spec = tmp_path / "gpus.yaml"
    spec.write_text(
        "gpus:\n- {model: h100-sxm5-80gb}\n"
        "- {model: a100-sxm4-80gb, migEnabled: true, instances: [{profile: 3g.40gb, start: 0}]}\n"
    )
    snapshot = SimulatedBackend.from_spec(str(spec), "node-1").snapshot()
    shared = GpuTerms(sharing=SharingTerms(strategy=Strategy.MPS))
    features = ApiServerFeatures(counters=True, taints=True, multi_allocation=True)
    built = build_devices(snapshot, {snapshot.gpus[0].uuid: shared}, features)
    names = {name.rpartition("/")[2] for device in built.devices for name in device.attributes}
    assert {"uuid", "profile", "parentUUID", "sharingStrategy", "placementStart"} <= names
    assert names <= set(OWN_ATTRIBUTES)

"""Finding out which gated fields are kept."""

import pytest

from dra_driver.errors import ForbiddenError, InvalidObjectError
from dra_driver.kube.discovery import ServerVersion
from dra_driver.slices.features import Features, FeatureWatch, probe
from tests.fakes.slices_api import FakeSlicesApi

ALL = Features(counters=True, taints=True, multi_allocation=True)


def test_a_server_that_keeps_everything_has_all_features() -> None:
    """And nothing is stored by asking."""
    api = FakeSlicesApi()
    assert probe(api, "gpu.nvidia.com", "node-a") == ALL
    assert api.objects == {}


@pytest.mark.parametrize(
    ("dropped", "missing"),
    [("sharedCounters", "counters"), ("consumesCounters", "counters"), ("taints", "taints"),
     ("allowMultipleAllocations", "multi_allocation")],
)  # fmt: skip
def test_a_dropped_field_is_a_missing_feature(dropped: str, missing: str) -> None:
    """Overlapping partitions without counters would be given away twice."""
    api = FakeSlicesApi()
    api.drops = {dropped}
    kept = probe(api, "gpu.nvidia.com", "node-a")
    assert {name for name in ("counters", "taints", "multi_allocation") if not getattr(kept, name)} == {missing}


def test_a_refused_canary_is_a_missing_feature_and_a_forbidden_one_an_error() -> None:
    """Invalid is an answer; not being allowed to ask is none."""
    api = FakeSlicesApi()
    api.failures = [InvalidObjectError("422", status=422)]
    assert not probe(api, "gpu.nvidia.com", "node-a").counters
    api.failures = [ForbiddenError("403", status=403)]
    with pytest.raises(ForbiddenError):
        probe(api, "gpu.nvidia.com", "node-a")


def test_the_server_is_asked_again_only_when_its_version_changes() -> None:
    """Gates change with a restart, new versions have other defaults; in between nothing needs asking."""
    api = FakeSlicesApi()
    versions = [ServerVersion(git_version=text, major=1, minor=36) for text in ("v1.36.2", "v1.36.2", "v1.37.0")]
    watch = FeatureWatch(api, lambda: versions.pop(0), "gpu.nvidia.com", "node-a")
    assert watch.current == Features()
    assert watch.refresh()
    api.drops = {"taints"}
    assert not watch.refresh()
    assert watch.current == ALL
    assert watch.refresh()
    assert not watch.current.taints

"""From conditions to terms."""

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.core.model.health import HealthCause, Severity
from dra_driver.core.model.health_rules import HealthRules
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, Taint
from dra_driver.kube.published.limits import is_taint
from dra_driver.node.process.health_conditions import KEYS, amended, taint_of
from dra_driver.node.process.missing_gpus import MissingGpu
from tests.fakes.stand_in import present
from tests.unit.node.health import world
from tests.unit.node.slices.gpus import H100, instance, mig_gpu, snapshot

FREE = mig_gpu(H100)
CUT = replace(FREE, mig_enabled=True, mig_mode_owned=True, mig_instances=(instance(FREE, 19, 6, owned=True),))
GI = CUT.mig_instances[0].gi_id
SINCE = 1_800_000_000.9
GONE = {FREE.uuid: MissingGpu(since=SINCE)}
WHEN = "2027-01-15T08:00:00Z"
condition = partial(world.condition, gpu_uuid=FREE.uuid, since=SINCE)


def test_every_cause_has_a_key_of_its_own() -> None:
    """Tolerations and dashboards name them."""
    assert set(KEYS) == set(HealthCause)
    assert len(set(KEYS.values())) == len(KEYS)
    assert all(is_taint(key, "") for key in KEYS.values())


@pytest.mark.parametrize(
    ("changes", "effect"),
    [({}, "NoSchedule"), ({"severity": Severity.EVICT}, "NoExecute"),
     ({"cause": HealthCause.UNMONITORED, "value": ""}, "None")],
)  # fmt: skip
def test_the_effect_follows_the_severity(changes: dict[str, Any], effect: Any) -> None:
    """Eviction only where policy asks for it."""
    found = present(taint_of(condition(**changes)))
    assert (found.effect, found.time_added) == (effect, WHEN)


def test_what_is_only_counted_taints_nothing() -> None:
    """Errors of applications."""
    counted = condition(severity=Severity.COUNTED)
    assert amended(snapshot(FREE), {}, [counted], {})[FREE.uuid] == GpuTerms()


def test_a_value_that_no_taint_can_have_is_left_out() -> None:
    """It would make the whole slice invalid."""
    assert taint_of(condition(value="a b")) == Taint(key=KEYS[HealthCause.XID], effect="NoSchedule", time_added=WHEN)


def test_a_gpus_condition_is_in_addition_to_its_terms() -> None:
    """A policy's taints stay."""
    reserved = GpuTerms(policy="p", taints=(Taint(key="example.com/reserved", effect="NoSchedule"),))
    found = amended(snapshot(FREE), {FREE.uuid: reserved}, [condition()], {})
    taint = Taint(key="gpu.nvidia.com/xid", value="79", effect="NoSchedule", time_added=WHEN)
    assert found == {FREE.uuid: replace(reserved, condition_taints=(taint,))}


def test_an_instances_condition_is_the_partitions() -> None:
    """By its placement, which is its device's name."""
    (terms,) = amended(snapshot(CUT), {}, [condition(gi_id=GI)], {}).values()
    assert terms.condition_taints == ()
    assert [taint.value for taint in terms.partition_taints[PartitionId(FREE.uuid, 19, 6)]] == ["79"]


def test_a_condition_of_a_destroyed_instance_taints_nothing() -> None:
    """The next instance with that id is another one."""
    (terms,) = amended(snapshot(FREE), {}, [condition(gi_id=GI)], {}).values()
    assert terms == GpuTerms()


def test_a_gpu_that_is_not_published_has_no_terms() -> None:
    """Events come for GPUs that are left out."""
    assert amended(snapshot(), {}, [condition()], {FREE.uuid: MissingGpu(since=1.0)}) == {}


@pytest.mark.parametrize("cause", [None, HealthCause.LOST, HealthCause.HANG])
def test_a_missing_gpu_is_tainted_before_its_condition_is_known(cause: HealthCause | None) -> None:
    """Between two looks it would otherwise be offered."""
    known = [] if cause is None else [condition(cause=cause, value="", severity=Severity.EVICT)]
    (terms,) = amended(snapshot(FREE), {}, known, GONE).values()
    (taint,) = terms.condition_taints
    assert (taint.key, taint.effect) == (
        (KEYS[cause], "NoExecute") if cause is not None else ("gpu.nvidia.com/gpu-lost", "NoSchedule")
    )


def test_a_healthy_node_has_no_amendment() -> None:
    """Terms stay the same object."""
    assert amended(snapshot(FREE), {}, [], {}) == {}


def test_a_missing_gpu_is_evicted_from_the_start_where_its_policy_says_so() -> None:
    """Else its taint is written twice: before its condition is known and after. One that may be late evicts nothing."""
    evicts = GpuTerms(health=HealthRules(evicting_causes=frozenset({HealthCause.LOST})))
    for awaited, effect in ((False, "NoExecute"), (True, "NoSchedule")):
        gone = {FREE.uuid: MissingGpu(since=SINCE, awaited=awaited)}
        (terms,) = amended(snapshot(FREE), {FREE.uuid: evicts}, (), gone).values()
        assert [(taint.key, taint.effect) for taint in terms.condition_taints] == [("gpu.nvidia.com/gpu-lost", effect)]

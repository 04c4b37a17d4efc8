"""From processes on GPUs to claims: what is attributed, what is not, what is unknown, and how it is judged."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import GpuUsage, InstanceUsage, ProcessUsage
from dra_driver.core.model.usage_rules import UsageRules
from dra_driver.node.usage.join import join
from dra_driver.node.usage.sources import CgroupPlace, ClaimedDevice, Look, PodClaims, ProcessFacts, Unread, index
from dra_driver.node.usage.values import (
    AssignedClaim,
    AssignedGpu,
    AssignedUse,
    Assignments,
    Basis,
    DeviceUse,
    JoinedUsage,
)
from dra_driver.node.usage.watchdog import claim_uses, share_uses
from tests.fakes.stand_in import present
from tests.unit.node.usage.claims import GIB, NOW

GPU = GpuUuid("GPU-a")
POOL = "n/gpu.nvidia.com"
PODS = {"a": "00000000-0000-0000-0000-00000000000a", "b": "00000000-0000-0000-0000-00000000000b"}
IDS = {"a": "aa" * 32, "b": "bb" * 32, "a2": "a2" * 32}


def use(**fields: Any) -> AssignedUse:
    given: dict[str, Any] = {"request": "gpu", "pool": POOL, "device": "gpu-0", "form": Form.WHOLE, "gpu_uuid": GPU}
    return AssignedUse(**(given | fields))


def share(number: int, **fields: Any) -> AssignedUse:
    return use(form=Form.SHARE, share_id=f"s{number}", memory_bytes=20 * GIB, percent=50, **fields)


def claimed(name: str, device: AssignedUse) -> ClaimedDevice:
    return ClaimedDevice(namespace="team", claim=name, pool=device.pool, device=device.device, share_id=device.share_id)


def assigned(**claims: AssignedUse | tuple[AssignedUse, ...]) -> Assignments:
    made = [
        AssignedClaim(
            uid=f"uid-{name}",
            namespace="team",
            name=name,
            prepared=NOW,
            devices=given if isinstance(given, tuple) else (given,),
        )
        for name, given in claims.items()
    ]
    gpus = (AssignedGpu(device="gpu-0", gpu_uuid=GPU),)
    return Assignments(node="n", driver="gpu.nvidia.com", process_started=NOW, gpus=gpus, claims=tuple(made))


def process(pid: int, gib: int | None = 4, sm: int | None = 10, gi: int | None = None) -> ProcessUsage:
    memory = None if gib is None else gib * GIB
    return ProcessUsage(pid=pid, gi_id=gi, memory_bytes=memory, sm_percent=sm, busy_percent=sm)


def reading(*processes: ProcessUsage, used: int = 40, **fields: Any) -> GpuUsage:
    given: dict[str, Any] = {
        "memory_total": 80 * GIB, "memory_reserved": GIB, "memory_used": used * GIB, "processes": processes,
    }  # fmt: skip
    return GpuUsage(gpu_uuid=GPU, **(given | fields))


def facts(pod: str | None, container: str | None = None) -> ProcessFacts:
    place = None if pod is None else CgroupPlace(pod_uid=PODS[pod], container_id=IDS[container or pod])
    return ProcessFacts(command="python3", place=place)


LINKS = [
    (f"pod-a_team_main-{IDS['a']}.log", f"/var/log/pods/team_pod-a_{PODS['a']}/main/0.log"),
    (f"pod-a_team_side-{IDS['a2']}.log", f"/var/log/pods/team_pod-a_{PODS['a']}/side/0.log"),
    (f"pod-b_team_main-{IDS['b']}.log", f"/var/log/pods/team_pod-b_{PODS['b']}/main/0.log"),
]
SHARES = assigned(one=share(1), two=share(2))
LOOK = Look(
    at=NOW,
    elapsed_s=10.0,
    assignments=SHARES,
    readings=(reading(process(1), process(2, 6), process(3, 1), process(9, 2)),),
    processes={1: facts("a"), 2: facts("b"), 3: facts(None)},
    logs=index(LINKS),
    pods={("team", "pod-a"): {"main": (claimed("one", share(1)),), "side": ()},
          ("team", "pod-b"): {"main": (claimed("two", share(2)),)}},
)  # fmt: skip


WHOLE = replace(LOOK, assignments=assigned(one=use()), pods={("team", "pod-a"): {"main": (claimed("one", use()),)}})


def of(found: JoinedUsage, name: str) -> DeviceUse:
    return next(each for each in found.devices if each.claim.name == name)


def test_two_shares_and_processes_of_the_host() -> None:
    found = join(LOOK)
    one, two, (gpu,) = of(found, "one"), of(found, "two"), found.gpus
    assert (one.used_bytes, one.sm_percent, two.used_bytes, two.sm_percent) == (4 * GIB, 10, 6 * GIB, 10)
    assert [each.pid for each in one.processes or ()] == [1]
    assert one.containers is not None
    assert [(each.pod.name, each.container) for each in one.containers] == [("pod-a", "main")]
    container = present((one.processes or ())[0].container)
    assert (container.pod.name, container.pod.uid) == ("pod-a", PODS["a"])
    assert gpu.unattributed is not None
    assert [each.pid for each in gpu.unattributed] == [3, 9]  # the host's, and one that ended meanwhile
    assert gpu.claims_bytes == 10 * GIB
    assert (gpu.claims_bytes + (gpu.unattributed_bytes or 0) + (gpu.reserved_bytes or 0)) == gpu.used_bytes == 41 * GIB
    assert (found.knows.processes, found.knows.containers, found.knows.claims) == (None, None, None)


def test_a_container_without_the_claim_is_foreign() -> None:
    """A privileged container of the same pod is not the claim's, and a pod without any claim neither."""
    found = join(replace(LOOK, processes={1: facts("a", "a2"), 2: facts("b")}))
    assert of(found, "one").processes == ()
    assert of(found, "one").used_bytes == 0
    foreign = present(found.gpus[0].unattributed)
    assert {each.pid for each in foreign} == {1, 3, 9}


def test_an_init_container_has_what_its_pod_has() -> None:
    """The kubelet does not list containers that run before the others."""
    pods = {("team", "pod-a"): {"main": (claimed("one", share(1)),)}}
    found = join(replace(LOOK, processes={1: facts("a", "a2")}, pods=pods))
    assert of(found, "one").used_bytes == 4 * GIB


def test_a_container_with_two_shares_of_one_gpu() -> None:
    """Which of two claims a process uses is not known, so neither is told; the GPU's sum has it."""
    both = (claimed("one", share(1)), claimed("two", share(2)))
    found = join(replace(LOOK, pods={("team", "pod-a"): {"main": both}}))
    assert [(each.used_bytes, each.shared_processes) for each in found.devices] == [(None, 1), (None, 1)]
    assert found.gpus[0].claims_bytes == 4 * GIB
    one = assigned(one=(share(1), share(2, request="more")))
    devices = (claimed("one", share(1)), claimed("one", share(2)))
    found = join(replace(LOOK, assignments=one, pods={("team", "pod-a"): {"main": devices}}))
    assert [each.used_bytes for each in found.devices] == [4 * GIB, 0]  # of one claim it is in the first


def test_kubelets_that_tell_no_share() -> None:
    """Before 1.35: the claim's name and the device are enough."""
    pods = {("team", "pod-a"): {"main": (replace(claimed("one", share(1)), share_id=None),)}}
    found = join(replace(LOOK, pods=pods))
    assert of(found, "one").used_bytes == 4 * GIB
    assert of(found, "one").containers != ()


def test_partitions_are_told_apart_by_their_instance() -> None:
    parts = {
        name: use(form=Form.PARTITION, device=f"gpu-0-mig-{gi}", gi_id=gi, profile="1g.10gb")
        for name, gi in (("one", 7), ("two", 8))
    }
    instances = (InstanceUsage(gi_id=7, memory_used=10 * GIB, sm_percent=70), InstanceUsage(gi_id=8))
    mig = reading(process(1, 4, None, 7), process(2, 6, None, 7), mig_enabled=True, instances=instances)
    pods = {
        ("team", f"pod-{pod}"): {"main": (claimed(name, parts[name]),)} for pod, name in (("a", "one"), ("b", "two"))
    }
    found = join(replace(LOOK, assignments=assigned(**parts), readings=(mig,), pods=pods))
    one, two = of(found, "one"), of(found, "two")
    assert (one.used_bytes, one.sm_percent, one.basis) == (4 * GIB, 70, Basis.PROCESSES)
    assert (two.used_bytes, two.sm_percent, two.processes) == (0, None, ())
    unknown = replace(mig, processes=None, problem="no permission")
    found = join(replace(LOOK, assignments=assigned(**parts), readings=(unknown,), pods=pods))
    one = of(found, "one")
    assert (one.used_bytes, one.basis, one.processes) == (10 * GIB, Basis.DEVICE, None)
    assert "no permission" in (found.knows.processes or "")


def test_without_rights_to_see_processes() -> None:
    blind = reading(processes=None, gpu_percent=55)
    found = join(replace(LOOK, assignments=assigned(one=use()), readings=(blind,)))
    assert (of(found, "one").used_bytes, of(found, "one").sm_percent) == (40 * GIB, 55)
    assert found.gpus[0].claims_bytes == 40 * GIB
    found = join(replace(LOOK, readings=(blind,)))
    assert [each.used_bytes for each in found.devices] == [None, None]
    assert (found.gpus[0].claims_bytes, found.gpus[0].unattributed) == (None, None)
    assert found.gpus[0].used_bytes == 41 * GIB


def test_a_missing_source_is_named_and_accuses_no_process() -> None:
    """Without PodResources, links of logs, /proc or the node process' file nothing is attributed or foreign."""
    gone = Unread(reason="it is gone")
    for source, said in (
        ("pods", "claims"),
        ("logs", "containers"),
        ("processes", "processes"),
        ("assignments", "claims"),
    ):
        found = join(replace(LOOK, **{source: gone}))
        assert getattr(found.knows, said) == "it is gone"
        assert found.gpus[0].unattributed is None
        assert all(each.used_bytes is None for each in found.devices)


def test_a_source_that_is_empty_accuses_no_process_and_calls_no_claim_idle() -> None:
    """Another folder is mounted for the links of logs; the kubelet's feature gate is off."""
    for look, said, word in (
        (replace(LOOK, logs=index(())), "containers", "/var/log/containers"),
        (replace(LOOK, pods={}), "claims", "KubeletPodResourcesDynamicResources"),
    ):
        found = join(look)
        assert word in (getattr(found.knows, said) or "")
        assert found.gpus[0].unattributed is None
        assert [each.used_bytes for each in found.devices] == [None, None]


def test_a_node_without_pods_on_gpus_knows_all() -> None:
    of_host = replace(LOOK, processes={1: facts(None)}, readings=(reading(process(1)),), logs=index(()), pods={})
    found = join(of_host)
    assert (found.knows.containers, found.knows.claims) == (None, None)
    assert len(found.gpus[0].unattributed or ()) == 1
    no_claims = join(replace(LOOK, assignments=assigned(), pods={}))
    assert no_claims.knows.claims is None
    assert len(no_claims.gpus[0].unattributed or ()) == 3 + 1


def test_a_driver_that_does_not_answer() -> None:
    found = join(replace(LOOK, readings=Unread(reason="detached")))
    assert found.knows.driver == "detached"
    assert [(gpu.reading, gpu.used_bytes) for gpu in found.gpus] == [(None, None)]
    assert [each.used_bytes for each in found.devices] == [None, None]


@pytest.mark.parametrize(
    ("mib", "busy", "is_nested", "fields"),
    [
        (900, 95, False, {}), (0, 1, False, {}), (900, 0, False, {}), (65, 0, True, {}),
        (2000, 0, False, {"memory_reserved": None}),
        (0, None, False, {"instances": (InstanceUsage(gi_id=1, busy_percent=1),)}),
        (None, None, False, {"instances": (InstanceUsage(gi_id=1, memory_used=4 * GIB),)}), (None, None, False, {}),
        (40, None, True, {"memory_reserved": None}),
    ],
)  # fmt: skip
def test_a_gpu_in_use_without_a_listed_process_is_not_unused(
    mib: int | None, busy: int | None, is_nested: bool, fields: dict[str, Any]
) -> None:
    hidden = reading(used=0, busy_percent=busy, **fields)
    memory = None if mib is None else mib * 2**20
    look = replace(LOOK, readings=(replace(hidden, memory_used=memory),), is_nested=is_nested)
    found = join(look)
    assert "GPU gpu-0" in present(found.knows.processes)
    assert "exporter.hostPID=true" in present(found.knows.processes)
    assert ("a separate PID namespace" in present(found.knows.processes)) == is_nested
    assert found.gpus[0].unattributed is None
    assert {each.claim.name: each.used for each in claim_uses(found)} == {"one": None, "two": None}
    alone = claim_uses(join(replace(WHOLE, readings=look.readings, is_nested=is_nested)))
    assert [each.used for each in alone] == [True if busy else None]


def test_one_gpu_whose_processes_are_hidden_hides_no_others() -> None:
    other = GpuUuid("GPU-b")
    here = reading(process(1), process(2, 6))
    readings = (here, replace(reading(used=0, busy_percent=9), gpu_uuid=other))
    found = join(replace(LOOK, readings=readings))
    assert of(found, "one").used_bytes == 4 * GIB
    assert [each.unattributed is None for each in found.gpus] == [False, True]
    assert "GPU-b" in present(found.knows.processes)


@pytest.mark.parametrize(
    ("mib", "is_nested", "fields"),
    [(0, False, {}), (64, True, {}), (256, False, {}), (900, False, {"memory_reserved": None})],
)
def test_a_gpu_at_rest_without_processes_is_unused(mib: int, is_nested: bool, fields: dict[str, Any]) -> None:
    rest = replace(reading(used=0, busy_percent=0, **fields), memory_used=mib * 2**20)
    found = join(replace(LOOK, readings=(rest,), is_nested=is_nested))
    assert found.knows.processes is None
    assert [each.used for each in claim_uses(found)] == [False, False]


def test_memory_that_counts_twice_is_unknown() -> None:
    """Two processes of one claim share 30 GiB by CUDA IPC, and the driver counts them for each."""
    ipc = reading(process(1, 30), process(1, 30), used=32)
    found = join(replace(LOOK, readings=(ipc,)))
    assert "CUDA IPC" in present(found.knows.memory)
    assert [(each.used_bytes, each.is_over) for each in share_uses(found)] == [(None, False), (0, False)]
    assert (found.gpus[0].claims_bytes, found.gpus[0].unattributed_bytes) == (None, None)
    alone = of(join(replace(WHOLE, readings=(ipc,))), "one")
    assert (alone.used_bytes, alone.basis) == (32 * GIB, Basis.DEVICE)
    assert join(replace(LOOK, readings=(replace(ipc, memory_used=60 * GIB),))).knows.memory is None


@pytest.mark.parametrize(("busy", "expected"), [(7, None), (None, None), (0, False)])
@pytest.mark.parametrize("is_listed", [False, True])
def test_a_client_of_mps_without_samples_is_unknown(busy: int | None, expected: bool | None, is_listed: bool) -> None:
    """The server has it in /proc, or the driver lists clients; a GPU at rest has no client that computes."""
    client, server = replace(process(1, 4, 0), mps=is_listed), process(9, 1, busy)
    named = {9: ProcessFacts(command="nvidia-cuda-mps", place=None)} if not is_listed else {}
    mps = reading(client, process(2, 4, 3), server, busy_percent=busy)
    found = join(replace(LOOK, readings=(mps,), processes={1: facts("a"), 2: facts("b")} | named))
    assert {each.claim.name: each.used for each in claim_uses(found)} == {"one": expected, "two": True}
    assert of(found, "one").sm_percent == expected
    assert ("MPS server" in (found.knows.utilisation or "")) == (expected is None)


@pytest.mark.parametrize(
    ("percents", "device", "expected"),
    [
        (None, None, None), (None, 0, None), ([], None, False), ([0, 0], None, False), ([0, 3], None, True),
        ([None, 3], None, True), ([None, 0], None, None), ([None], 0, False), ([None], 7, True), ([], 7, True),
    ],
)  # fmt: skip
def test_use_is_any_engine_and_unknown_stays_unknown(
    percents: list[int | None] | None, device: int | None, expected: bool | None
) -> None:
    """Of the processes, and of the GPU where one claim has it alone; multiprocessors may be at rest."""
    listed = None if percents is None else tuple(replace(process(1, 0, 0), busy_percent=each) for each in percents)
    whole = replace(reading(used=0, busy_percent=device), processes=listed)
    (found,) = claim_uses(join(replace(WHOLE, readings=(whole,))))
    assert found.used is expected


def test_processes_of_another_proc() -> None:
    assert "hidepid" in (join(replace(LOOK, processes={})).knows.processes or "")


def test_a_claim_that_was_made_anew_under_its_name() -> None:
    """The kubelet tells no UID: the one prepared last has the process."""
    old = replace(SHARES.claims[0], uid="z", prepared=NOW - timedelta(hours=1))
    found = join(replace(LOOK, assignments=replace(SHARES, claims=(*SHARES.claims, old))))
    assert {each.claim.uid: each.used_bytes for each in found.devices if each.claim.name == "one"} == {
        "uid-one": 4 * GIB, "z": 0,
    }  # fmt: skip


def test_admin_access_takes_no_process_from_a_claim() -> None:
    both = assigned(one=use(), two=use(admin_access=True))
    pods: PodClaims = {("team", "pod-a"): {"main": (claimed("one", use()), claimed("two", use()))},
            ("team", "pod-b"): {"main": (claimed("two", use()),)}}  # fmt: skip
    found = join(replace(LOOK, assignments=both, pods=pods))
    assert (of(found, "one").used_bytes, of(found, "two").used_bytes) == (4 * GIB, 6 * GIB)


def test_memory_that_is_not_known() -> None:
    found = join(replace(LOOK, readings=(reading(process(1, None), process(2, 6)),)))
    assert (of(found, "one").used_bytes, of(found, "two").used_bytes) == (None, 6 * GIB)
    assert (found.gpus[0].claims_bytes, found.gpus[0].unattributed_bytes) == (None, None)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), max_size=12), st.integers(0, 80))
def test_the_parts_of_a_gpu_add_up(processes: list[tuple[int, int]], used: int) -> None:
    listed = [process(pid, gib) for pid, gib in processes]
    gpu = join(replace(LOOK, readings=(reading(*listed, used=used),))).gpus[0]
    if gpu.claims_bytes is not None:
        assert gpu.claims_bytes + (gpu.unattributed_bytes or 0) + (gpu.reserved_bytes or 0) == gpu.used_bytes


RULES = UsageRules(idle_after_min=5)


def ruled(assignments: Assignments) -> Assignments:
    return replace(assignments, gpus=(replace(assignments.gpus[0], rules=RULES),))


def test_shares_with_their_pods_and_rules() -> None:
    one, two = share_uses(join(replace(LOOK, assignments=ruled(SHARES))))
    assert (one.claim.name, one.device, one.used_bytes, one.grant_bytes) == ("one", "gpu-0", 4 * GIB, 20 * GIB)
    assert (one.processes, [pod.name for pod in one.pods], one.rules) == (1, ["pod-a"], RULES)
    assert two.used_bytes == 6 * GIB
    both = share_uses(join(replace(LOOK, assignments=assigned(one=(share(1), share(2))))))
    assert [(each.grant_bytes, each.used_bytes) for each in both] == [(40 * GIB, 4 * GIB)]


def test_what_is_not_a_share_is_not_judged() -> None:
    """Whole GPUs end where the hardware says, and shares without a grant of memory have no limit."""
    free = replace(share(2), memory_bytes=None)
    assert share_uses(join(replace(LOOK, assignments=assigned(one=use(), two=free)))) == []


def test_claims_that_compute_and_claims_that_do_not() -> None:
    idle = reading(process(1, 4, 0))
    found = claim_uses(join(replace(LOOK, assignments=ruled(SHARES), readings=(idle,))))
    assert {each.claim.name: (each.used, each.after_min) for each in found} == {"one": (False, 5), "two": (False, 5)}
    unknown = reading(process(1, 4, None), process(2, 4, 7))
    found = claim_uses(join(replace(LOOK, readings=(unknown,))))
    assert {each.claim.name: each.used for each in found} == {"one": None, "two": True}


def test_monitors_are_no_claims_that_idle() -> None:
    assert claim_uses(join(replace(LOOK, assignments=assigned(one=use(admin_access=True))))) == []


def test_a_process_that_may_be_another_claims_makes_none_of_them_idle() -> None:
    both = (claimed("one", share(1)), claimed("two", share(2)))
    found = claim_uses(join(replace(LOOK, pods={("team", "pod-a"): {"main": both}})))
    assert [each.used for each in found] == [None, None]

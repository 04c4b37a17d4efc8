"""doctor, explain, capacity, claims, devices, usage and the page agree about random clusters: is a GPU healthy, who
holds it, does a claim fit, why does it wait. A seed is one cluster."""

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

from dra_driver.config.status import node_status, node_status_of
from dra_driver.core.finding import Status
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.gpu_node import GpuNodeStatus, HealthWord, NodeGpu, ReportedOverGrant, ReportedUsage
from dra_driver.core.model.health import TAINT_KEYS, HealthCause
from dra_driver.core.model.mig import parent_name
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.report import DoctorReport
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.kubectl.capacity import NodeCapacity, claims_of, devices_of
from dra_driver.kubectl.explain import Answer, claim_subject, explain, pod_subject, scheduler_for, with_defaults
from dra_driver.kubectl.usage.device_use import KEYS, decode, summed
from dra_driver.kubectl.web.fleet import SeenFleet, fleet_of
from dra_driver.kubectl.web.rows import explain_pod, survey_of, waiting_pods
from dra_driver.node.process.gpu_node import offered_forms
from dra_driver.node.slices import ApiServerFeatures, build_devices
from dra_driver.scheduler.allocation import Allocator
from tests.doctor_faults.cluster import SERVER, Cluster, driver_pod, gpu_node, named, workload
from tests.fakes.dra_objects import DRIVER, claim, exactly
from tests.fakes.published import EVERYTHING, published

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPACE = "team-a"
MODELS = ("a100-sxm4-40gb", "a30-24gb", "h100-sxm5-80gb", "l4-24gb")
BROKEN = {"lost": HealthCause.LOST, "xid": HealthCause.XID, "row-remap": HealthCause.ROW_REMAP}
OTHER = {
    "drained": "gpu.dra-driver.io/drained",
    "detached": "gpu.dra-driver.io/detached",
    "reserved": "gpu.dra-driver.io/reserved",
}
PROFILE = f'device.attributes["{DRIVER}"].profile == '
WISHES = {
    "whole": exactly(),
    "two": exactly(count=2),
    "part": exactly("gpu", f'{PROFILE}"1g.10gb"', deviceClassName="mig.nvidia.com"),
    "mig": exactly(deviceClassName="mig.nvidia.com"),
    "small": exactly("gpu", f'{PROFILE}"1g.5gb"', deviceClassName="mig.nvidia.com"),
    "tolerant": exactly(tolerations=[{"operator": "Exists"}]),
    "share": exactly(capacity={"requests": {"memory": "10Gi", "computePercent": "10"}}),
}


class World:
    """A cluster of the seed: its objects in `api`, and the state of its GPUs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311  reproducible, not secret
        self.api = Cluster()
        self.has_gates = self.random.random() < 0.8
        self.broken: set[tuple[str, str]] = set()  # node and name of the GPU
        self.withdrawn: set[tuple[str, str]] = set()  # of broken GPUs, which slices no longer have
        self.gpus: dict[tuple[str, str], Gpu] = {}
        names = [f"n{number}" for number in range(self.random.randint(1, 3))]
        self.api.nodes, self.api.slices, self.api.gpu_nodes = [], [], []
        self.api.pods = [driver_pod(name) for name in names]
        if self.random.random() < 0.4:
            del self.api.gates["DRAPartitionableDevices"]
        elif not self.has_gates:
            self.api.gates["DRAPartitionableDevices"] = False
        self.terms: dict[str, GpuTerms] = {}
        for name in names:
            self._add_node(name)
        self._place_claims()
        for name in names:
            self._spoil(name)
        for number in range(self.random.randint(0, 3)):
            self._add_pod(f"wait-{number}", self.random.choice(sorted(WISHES)))

    def _add_node(self, name: str) -> None:
        model = catalog.model(self.random.choice(MODELS))
        gpus = tuple(invent(model, minor, name) for minor in range(self.random.randint(1, 2)))
        snapshot = Snapshot(driver_version=DEFAULT_DRIVER_VERSION, cuda_driver_version=DEFAULT_CUDA_VERSION, gpus=gpus)
        sharing = SharingTerms(strategy=Strategy.MPS, max_shares=4) if self.random.random() < 0.25 else None
        terms = GpuTerms(policy="p", sharing=sharing) if sharing else GpuTerms()
        features = EVERYTHING if self.has_gates else ApiServerFeatures(taints=True, taints_1_35=True)
        self.terms[name] = terms
        for item in published(build_devices(snapshot, {gpu.uuid: terms for gpu in gpus}, features)):
            item["metadata"]["name"] += f"-{name}"
            item["spec"] |= {"nodeName": name, "pool": {**item["spec"]["pool"], "name": f"{name}/{DRIVER}"}}
            self.api.slices.append(item)
        self.gpus |= {(name, gpu.device_name): gpu for gpu in gpus}
        self.api.nodes.append(gpu_node(name))
        self.api.nodes[-1]["spec"]["taints"] = []

    def _place_claims(self) -> None:
        for number in range(self.random.randint(0, 5)):
            wish = self.random.choice(sorted(WISHES))
            wanted = claim(f"c{number}", WISHES[wish], namespace=SPACE)
            allocator = Allocator(slices=self.api.slices, classes=self.api.classes, allocated=self.api.claims)
            node = self.random.choice(self.api.nodes)
            found = allocator.allocate(node, [wanted]).allocations
            if found is None:
                continue  # a claim of no pod that waits
            users = [f"run-{number}-{each}" for each in range(self.random.randint(0, 2))]
            reserved = [{"resource": "pods", "name": user, "uid": f"uid-of-{user}"} for user in users]
            wanted["status"] = {"allocation": found[0], "reservedFor": reserved}
            self.api.claims.append(wanted)
            for user in users:
                source = {"name": "gpu", "resourceClaimName": f"c{number}"}
                pod = workload(user, node=node["metadata"]["name"], resourceClaims=[source])
                self.api.pods.append({**pod, "status": {"phase": "Running"}})

    def _spoil(self, name: str) -> None:
        detached = self.random.random() < 0.1
        told: list[NodeGpu] = []
        stale = self.random.random() < 0.2
        for (node, gpu_name), gpu in self.gpus.items():
            if node != name:
                continue
            fault = self.random.choice([*BROKEN, "drained", "reserved", "unmonitored", *[""] * 6])
            keys = [TAINT_KEYS[BROKEN[fault]]] if fault in BROKEN else [OTHER[fault]] if fault in OTHER else []
            keys += [OTHER["detached"]] if detached else []
            taints = [{"key": key, "effect": self.random.choice(["NoSchedule", "NoExecute"])} for key in keys]
            if fault == "unmonitored":
                taints.append({"key": TAINT_KEYS[HealthCause.UNMONITORED], "effect": "None"})
            is_withdrawn = fault in BROKEN and self.random.random() < 0.2
            for item in self.api.slices:
                devices = item["spec"].get("devices") or []
                mine = [
                    each for each in devices if gpu.uuid in str(each["attributes"]) and item["spec"]["nodeName"] == node
                ]
                for device in mine if taints else ():
                    device["taints"] = [*device.get("taints", ()), *taints]
                if is_withdrawn and mine:
                    item["spec"]["devices"] = [each for each in devices if each not in mine]
            if fault in BROKEN:
                (self.withdrawn if is_withdrawn else self.broken).add((node, gpu_name))
            bad = fault in BROKEN and (is_withdrawn or not stale)
            told.append(
                NodeGpu(
                    name=gpu_name,
                    uuid=gpu.uuid,
                    product_name=gpu.product_name,
                    offered_as=offered_forms(gpu, self.terms[node]),
                    policy=self.terms[node].policy,
                    health=HealthWord.UNHEALTHY if bad else HealthWord.HEALTHY,
                    causes=(fault,) if bad else (),
                    message=f"It has {fault}." if bad else None,
                )
            )
        usage = ReportedUsage()
        held = [each for each in self.api.claims if each["status"]["reservedFor"]]
        if held and self.random.random() < 0.3:
            over = ReportedOverGrant(
                namespace=SPACE, claim=held[0]["metadata"]["name"], claim_uid="u", gpu="gpu-0", used="20Gi",
                granted="10Gi", processes=1, pods=(), since="2026-01-01T00:00:00Z", grace_s=10,
            )  # fmt: skip
            usage = ReportedUsage(over_grant=(over,))
        if self.random.random() < 0.85 or any(place[0] == name for place in self.withdrawn):
            status = GpuNodeStatus(driver_name=DRIVER, driver_version="580", gpus=tuple(told), usage=usage)
            self.api.gpu_nodes.append(
                {"metadata": {"name": name}, "status": node_status(status, "2026-01-01T00:00:00Z")}
            )
        wire = next(each for each in self.api.nodes if each["metadata"]["name"] == name)
        if self.random.random() < 0.15:
            wire["spec"]["unschedulable"] = True
        elif self.random.random() < 0.1:
            wire["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
            wire["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]

    def _add_pod(self, name: str, wish: str) -> None:
        held = [each["metadata"]["name"] for each in self.api.claims]
        if held and self.random.random() < 0.2:  # a further pod of a claim
            source = {"resourceClaimName": self.random.choice(held)}
        else:
            source = {"resourceClaimTemplateName": f"t-{name}"}
            spec = {"spec": {"devices": {"requests": [WISHES[wish]]}}}
            self.api.templates.append(named(f"t-{name}", SPACE, spec=spec))
        self.api.pods.append(workload(name, resourceClaims=[{"name": "gpu", **source}]))

    @property
    def gates(self) -> str:
        return "" if self.has_gates else "DRAPartitionableDevices=false,DRAConsumableCapacity=false"


Place = tuple[str, str]


class Answers:
    """Every answer about one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        facts = read_facts(world.api, server=SERVER)
        self.facts, self.state = facts, facts.state()
        self.ruled = with_defaults(self.state)
        self.scheduler = scheduler_for(self.ruled, world.gates)
        self.claims = claims_of(self.ruled, NOW)
        self.devices = devices_of(self.ruled)
        told = {each["metadata"]["name"]: node_status_of(each) for each in world.api.gpu_nodes}
        self.page: SeenFleet = fleet_of(
            self.state.slices, self.state.nodes, self.claims, {name: status for name, status in told.items() if status}
        )
        self.capacity: dict[str, NodeCapacity] = {each.node: each for each in survey_of(self.state).nodes}

    @cache  # noqa: B019  lives as long as the test
    def doctor(self, kind: str = "cluster", name: str = "") -> DoctorReport:
        namespace = SPACE if kind in ("pod", "claim") else ""
        scope = DoctorScope(kind=kind, namespace=namespace, name=name)
        return diagnose(self.facts, scope, clock=time.monotonic)

    def sick_by_doctor(self, kind: str = "cluster", name: str = "") -> set[Place]:
        found = [each for each in self.doctor(kind, name).findings if each.check == "gpu-health"]
        return {tuple(each.object.split("/")[1:]) for each in found if each.status is Status.FAIL}  # type: ignore[misc]

    def contradictions(self) -> Iterator[str]:
        yield from self._about_health()
        yield from self._about_holders()
        yield from self._about_waiting()

    def _about_health(self) -> Iterator[str]:
        world = self.world
        known = world.broken | world.withdrawn
        sick = {(gpu.node, gpu.name) for node in self.page.nodes for gpu in node.gpus if gpu.is_unhealthy}
        yield from differ("health: page and truth", sick, known)
        yield from differ("health: doctor and page", self.sick_by_doctor(), sick)
        for node in self.state.nodes:
            name = node["metadata"]["name"]
            yield from differ(
                f"health: doctor node/{name}", self.sick_by_doctor("node", name), {p for p in sick if p[0] == name}
            )
        held: set[Place] = set()
        for row in self.claims:
            mine = {(each.node, parent_name(each.device)) for each in row.devices}
            held |= mine & world.broken
            shown = {(each.node, parent_name(each.device)) for each in row.devices if each.unhealthy}
            yield from differ(f"health: claims {row.name}", shown, mine & world.broken)
            gone = {(each.node, parent_name(each.device)) for each in row.devices if not each.published}
            yield from differ(f"health: claims {row.name}, withdrawn", gone, mine & world.withdrawn)
            subjects = [claim_subject(self.state, SPACE, row.name)] if row.state == "allocated" else []
            running = [
                pod
                for pod in self.state.pods
                if pod["metadata"]["name"] in row.pods and pod["status"]["phase"] == "Running"
            ]
            subjects += [pod_subject(self.state, SPACE, pod["metadata"]["name"]) for pod in running]
            for subject in subjects:
                answer = explain(self.state, subject, scheduler=self.scheduler).verdict.answer
                if (answer is Answer.UNHEALTHY) is not bool(mine & known):
                    yield f"health: explain {subject} is {answer}, its GPUs {mine}, broken {known}"
                yield from differ(
                    f"health: doctor {subject}", self.sick_by_doctor(subject.kind, subject.name), mine & known
                )
        for name, seen in self.capacity.items():
            counted = sum(model.gpus.held_unhealthy for model in seen.models)
            if counted != len({place for place in held if place[0] == name}):
                yield f"health: capacity of {name} counts {counted} held unhealthy, there are {held}"

    def _about_holders(self) -> Iterator[str]:
        by_claim = {(row.name, each.node, each.device) for row in self.claims for each in row.devices}
        by_device = {(h.claim, row.node, row.device) for row in self.devices for h in row.holders or ()}
        yield from differ("holders: claims and devices", by_claim, by_device)
        parts = {
            (part.claim, gpu.node, part.device) for node in self.page.nodes for gpu in node.gpus for part in gpu.parts
        }
        yield from differ("holders: page and claims", parts, by_claim)
        for node in self.page.nodes:
            seen = [gpu for gpu in node.gpus if (gpu.node, gpu.name) not in self.world.withdrawn]
            models = self.capacity[node.name].models if node.name in self.capacity else ()
            taken = sum(m.gpus.used + m.gpus.fragmented for m in models)
            free = sum(m.gpus.free for m in models)
            if (sum(m.gpus.total for m in models), taken) != (len(seen), sum(bool(gpu.parts) for gpu in seen)):
                yield f"holders: capacity of {node.name}: {models}, page: {[(gpu.name, gpu.parts) for gpu in seen]}"
            if free > sum(not gpu.parts and not gpu.is_unhealthy for gpu in seen):
                yield f"holders: capacity of {node.name} has {free} free, the page fewer"
        # usage shows each claim of its node's exporter, with the pods and devices that claims shows.
        for name in self.capacity:
            mine = [row for row in self.claims if name in row.nodes]
            readings = [
                {
                    "namespace": row.namespace,
                    "name": row.name,
                    "pods": [{"name": pod} for pod in row.pods],
                    "devices": [{"device": each.device, "usedBytes": 1} for each in row.devices],
                }
                for row in mine
            ]
            uses = decode({"version": 1, "node": name, "claims": readings}).uses
            shown = {(use.claim, use.node, use.device, use.pods) for use in uses}
            wanted = {(row.name, each.node, each.device, tuple(row.pods)) for row in mine for each in row.devices}
            yield from differ(f"holders: usage of {name}", shown, wanted)
            yield from differ(
                "holders: sums", {each.key["claim"] for each in summed(uses, KEYS["claim"])}, {r.name for r in mine}
            )

    def _about_waiting(self) -> Iterator[str]:
        by_page = {(each.namespace, each.name) for each in waiting_pods(self.state)}
        pods = [pod for pod in self.state.pods if pod["metadata"]["name"].startswith("wait-")]
        yield from differ("waiting: page", by_page, {(SPACE, pod["metadata"]["name"]) for pod in pods})
        classes = {each.object: each for each in self.doctor().findings if each.check == "classes-match"}
        for pod in pods:
            name = pod["metadata"]["name"]
            report = explain(self.state, pod_subject(self.state, SPACE, name), scheduler=self.scheduler)
            if self.world.has_gates and explain_pod(self.state, SPACE, name).verdict != report.verdict:
                yield f"waiting: page and explain differ about {name}"
            template = pod["spec"]["resourceClaims"][0].get("resourceClaimTemplateName")
            if template is None:
                row = next(r for r in self.claims if r.name == pod["spec"]["resourceClaims"][0]["resourceClaimName"])
                on_broken = {(each.node, parent_name(each.device)) for each in row.devices} & self.world.broken
                if on_broken and report.verdict.answer is Answer.FITS:
                    yield f"waiting: {name} fits, and its claim has {on_broken}"
                continue
            (request,) = next(t for t in self.state.templates if t["metadata"]["name"] == template)["spec"]["spec"][
                "devices"
            ]["requests"]
            exact = request["exactly"]
            if request == WISHES["whole"]:
                fits = {node for node, seen in self.capacity.items() if self._fits(node, seen)}
                if fits != set(report.fitting_nodes) and self.world.has_gates:
                    yield f"waiting: {name} fits on {report.fitting_nodes} by explain, on {fits} by capacity"
            miss = report.nearest_miss
            if miss is not None and "olerat" in miss.fix and "reserved" not in miss.fix:
                broken = {(miss.node, parent_name(each)) for each in miss.device.split(", ")} & self.world.broken
                if broken:
                    yield f"waiting: {name}: the fix tolerates {broken}: {miss.fix}"
            unmatched = classes.get(f"class/{exact['deviceClassName']}")
            mode = any(cause.code == "migModeOff" for cause in report.causes)
            if (
                unmatched
                and unmatched.status is Status.FAIL
                and ("MIG mode" in unmatched.seen) is not mode
                and request == WISHES["mig"]
                and self.world.has_gates
            ):
                yield f"waiting: {name}: MIG mode by explain {mode}, doctor: {unmatched.seen}"
            if unmatched and unmatched.status is Status.FAIL and report.verdict.answer is Answer.FITS:
                yield f"waiting: {name} fits, and doctor says: {unmatched.seen}"

    def _fits(self, node: str, seen: NodeCapacity) -> bool:
        return not seen.problem and any(
            each.fits > 0
            for model in seen.models
            for each in model.requests
            if each.request in ("1 GPU", "1 shared GPU")
        )


def differ(what: str, one: set[Any], other: set[Any]) -> Iterator[str]:
    if one != other:
        yield f"{what}: only the first {sorted(one - other)}, only the second {sorted(other - one)}"


def test_answers_agree() -> None:
    assert [(seed, each) for seed in range(40) for each in Answers(World(seed)).contradictions()] == []


@pytest.mark.slow
def test_answers_agree_about_many_clusters() -> None:
    assert [(seed, each) for seed in range(40, 540) for each in Answers(World(seed)).contradictions()] == []

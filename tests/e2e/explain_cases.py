"""Pods of every kind that a scheduler rejects or places, with devices of a driver that does not run.

The scheduler only reads ResourceSlices, so published slices suffice to test it. The slices select the node by its
label, because the kubelet deletes slices with its node name when it starts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.e2e.gates import EXTENDED, PARTITIONS, SHARES, TAINTS, missing
from tests.e2e.objects import pod

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pod and its objects. ``code`` is the cause that explain has to name, "" when the pod fits.

    ``scheduler`` is a part of the scheduler's message, "" when the scheduler never considers the pod. ``needs`` are
    feature gates.
    """

    name: str
    requests: Sequence[Obj] = ()
    constraints: Sequence[Obj] = ()
    code: str = ""
    scheduler: str = ""
    pod: Obj = field(default_factory=dict)
    resources: Obj = field(default_factory=dict)
    claim: Obj = field(default_factory=dict)
    others: Sequence[Obj] = ()
    needs: frozenset[str] = frozenset()

    def objects(self) -> list[Obj]:
        """Returns template and pod."""
        entry = self.claim or ({"resourceClaimTemplateName": self.name} if self.requests else {})
        container: Obj = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": self.resources}
        spec: Obj = {"containers": [container], "terminationGracePeriodSeconds": 0, **self.pod}
        made: list[Obj] = [*self.others]
        if entry:
            spec["resourceClaims"] = [{"name": "gpu", **entry}]
        if self.requests:
            devices = {"requests": list(self.requests), "constraints": list(self.constraints)}
            header = {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": self.name},
            }
            made.append({**header, "metadata": {"name": self.name}, "spec": {"spec": {"devices": devices}}})
        return [*made, pod(self.name, spec)]


class Cluster:
    """Names and objects of one driver: its classes and slices, as far as the cluster's gates keep them.

    ``counters_beside``: counter sets are in the slice of the devices that consume them, as 1.34 wants it.
    """

    def __init__(self, mark: str, node: str, gates: Mapping[str, bool], *, counters_beside: bool) -> None:
        self._gates, self._counters_beside = gates, counters_beside
        self.driver = f"explain-{mark}.example.com"
        self.whole, self.part, self.shared = f"whole-{mark}", f"part-{mark}", f"shared-{mark}"
        self.resource = f"{self.driver}/gpu"
        self._mark = mark
        self._node = node

    def attribute(self, name: str) -> str:
        return f'device.attributes["{self.driver}"].{name}'

    def request(self, class_name: str, *expressions: str, name: str = "gpu", **fields: Any) -> Obj:
        selectors = [{"cel": {"expression": expression}} for expression in expressions]
        return {"name": name, "exactly": {"deviceClassName": class_name, "selectors": selectors, **fields}}

    def classes(self) -> list[Obj]:
        return [
            self._class(self.whole, "gpu", extendedResourceName=self.resource),
            self._class(self.part, "part"),
            self._class(self.shared, "shared"),
        ]

    def slices(self) -> list[Obj]:
        taint = {"key": "example.com/broken", "value": "xid79", "effect": "NoSchedule"}
        whole = [
            self._device("a100-0", "gpu", model="A100", memory="40Gi", root="r0"),
            self._device("a100-1", "gpu", model="A100", memory="40Gi", root="r0"),
            self._device("h100-0", "gpu", model="H100", memory="80Gi", root="r1"),
            self._device("h100-1", "gpu", taints=[taint], model="H100", memory="80Gi", root="r1"),
            self._device("h100-2", "gpu", taints=[taint], model="H100", memory="80Gi", root="r1"),
            self._device("l4-0", "gpu", model="L4", memory="24Gi", root="r2"),
            self._device("l4-1", "gpu", model="L4", memory="24Gi", root="r3"),
        ]
        shared = self._device("shared-0", "shared", allowMultipleAllocations=True, model="L4", memory="24Gi", root="r4")
        sizes = {"part-a": "20Gi", "part-b": "30Gi"}
        parts = [
            self._device(
                name,
                "part",
                consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": size}}}],
                model="H100",
                memory=size,
                root="r5",
            )
            for name, size in sizes.items()
        ]
        counters = [{"name": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}]
        found = [self._slice("whole", devices=[*whole, *([shared] if self._gates.get(SHARES) else [])])]
        if not self._gates.get(PARTITIONS):
            return found
        if self._counters_beside:
            return [*found, self._slice("parts", sharedCounters=counters, devices=parts)]
        counted = self._slice("counters", pool="parts", count=2, sharedCounters=counters)
        return [*found, counted, self._slice("parts", count=2, devices=parts)]

    def incomplete(self) -> Obj:
        """Returns one slice of a pool of two."""
        return self._slice(
            "half", count=2, devices=[self._device("half-0", "half", model="T4", memory="16Gi", root="r6")]
        )

    def half_class(self) -> Obj:
        return self._class(f"half-{self._mark}", "half")

    def fitting(self) -> list[Case]:
        """Returns pods that all fit when created in this order."""
        return self._possible(self._fitting())

    def _fitting(self) -> list[Case]:
        model = self.attribute("model")
        either = [
            {"name": name, "deviceClassName": self.whole, "selectors": [{"cel": {"expression": f'{model} == "{of}"'}}]}
            for name, of in (("best", "B200"), ("next", "A100"))
        ]
        tolerated = {"key": "example.com/broken", "operator": "Exists"}
        named = self.attribute("name")
        share = {"requests": {"memory": "8Gi"}}
        return [
            Case(name="one-gpu", requests=[self.request(self.whole, f'{model} == "A100"')]),
            Case(name="second-best", requests=[{"name": "gpu", "firstAvailable": either}]),
            Case(name="share", requests=[self.request(self.shared, capacity=share)], needs=frozenset({SHARES})),
            Case(name="another-share", requests=[self.request(self.shared, capacity=share)], needs=frozenset({SHARES})),
            Case(
                name="tolerates",
                requests=[self.request(self.whole, f'{named} == "h100-1"', tolerations=[tolerated])],
                needs=frozenset({TAINTS}),
            ),
            Case(name="extended", resources={"limits": {self.resource: "1"}}, needs=frozenset({EXTENDED})),
            Case(
                name="part",
                requests=[self.request(self.part, f'{named} == "part-a"')],
                needs=frozenset({PARTITIONS}),
            ),
        ]

    def pending(self) -> list[Case]:
        """Returns pods that do not fit after the fitting ones are placed."""
        found = [*self._devices_short(), *self._combinations(), *self._never_evaluated()]
        return self._possible([*found, *self._not_caused_by_devices()])

    def _possible(self, cases: Iterable[Case]) -> list[Case]:
        return [case for case in cases if not missing(case.needs, self._gates)]

    def _short(self, name: str, code: str, expression: str, *, of: str = "", needs: str = "", **request: Any) -> Case:
        """A pod that the scheduler cannot place because of the devices of class ``of``, by default the whole ones."""
        return Case(
            name=name,
            code=code,
            scheduler="cannot allocate all claims",
            requests=[self.request(of or self.whole, *filter(None, [expression]), **request)],
            needs=frozenset({needs} if needs else ()),
        )

    def _devices_short(self) -> list[Case]:
        model, named = self.attribute("model"), self.attribute("name")
        capacity = f'device.capacity["{self.driver}"].memory'
        too_much = {"requests": {"memory": "16Gi"}}
        return [
            self._short("in-use", "inUse", f'{model} == "A100"'),
            self._short("tainted", "tainted", f'{named} == "h100-2"', needs=TAINTS),
            self._short("too-small", "requestSelector", f'{capacity}.compareTo(quantity("100Gi")) >= 0'),
            self._short("other-class", "classSelector", f'{named} == "a100-0"', of=self.part),
            self._short("counters", "counterShort", f'{named} == "part-b"', of=self.part, needs=PARTITIONS),
            self._short("capacity", "capacityShort", "", of=self.shared, needs=SHARES, capacity=too_much),
        ]

    def _combinations(self) -> list[Case]:
        model = self.attribute("model")
        linked = self._short("constraint", "constraint", f'{model} == "L4"', count=2)
        return [
            replace(linked, constraints=[{"matchAttribute": f"{self.driver}/root"}]),
            self._short("too-many", "requestSelector", f'{model} == "L4"', count=3),
            self._short("all", "inUse", f'{model} == "A100"', allocationMode="All"),
        ]

    def _never_evaluated(self) -> list[Case]:
        return [
            Case(
                name="cel-error",
                code="celError",
                scheduler="no such key",
                requests=[self.request(self.whole, f'{self.attribute("nosuch")} == "x"')],
            ),
            Case(
                name="over-limit",
                code="notWeighable",
                scheduler="exceeds the claim limit",
                requests=[self.request(self.whole, name="a", count=20), self.request(self.whole, name="b", count=20)],
            ),
            Case(
                name="no-class",
                code="classMissing",
                scheduler="does not exist",
                requests=[self.request(f"missing-{self._mark}")],
            ),
            Case(name="no-template", code="templateMissing", claim={"resourceClaimTemplateName": "missing"}),
            Case(name="no-claim", code="claimMissing", claim={"resourceClaimName": "missing"}),
            Case(
                name="no-resource",
                code="resourceUnknown",
                scheduler="Insufficient",
                resources={"limits": {f"{self.driver}/missing": "1"}},
            ),
        ]

    def _not_caused_by_devices(self) -> list[Case]:
        requests = [self.request(self.whole, f'{self.attribute("root")} == "r2"')]

        def volume(claim: str) -> Obj:
            return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]}

        return [
            Case(
                name="elsewhere",
                code="nodesUnfit",
                scheduler="node affinity/selector",
                requests=requests,
                pod={"nodeSelector": {"example.com/nowhere": "true"}},
            ),
            Case(
                name="no-cpu",
                code="nodesUnfit",
                scheduler="Insufficient cpu",
                requests=requests,
                resources={"requests": {"cpu": "4k"}},
            ),
            Case(
                name="gated",
                code="schedulingGates",
                requests=requests,
                pod={"schedulingGates": [{"name": "example.com/wait"}]},
            ),
            Case(
                name="no-volume", code="volumeWaiting", scheduler="not found", requests=requests, pod=volume("missing")
            ),
            Case(
                name="volume",
                code="volumeWaiting",
                scheduler="unbound immediate PersistentVolumeClaims",
                requests=requests,
                pod=volume("data"),
                others=[_volume_claim("data")],
            ),
        ]

    def half(self) -> Case:
        """Returns the pod for an incomplete pool, which exists only for a short time: it affects requests for all."""
        return Case(
            name="half",
            code="poolUnusable",
            scheduler="cannot allocate all claims",
            requests=[self.request(f"half-{self._mark}")],
        )

    def _class(self, name: str, kind: str, **spec: Any) -> Obj:
        guard = f'device.driver == "{self.driver}" && {self.attribute("type")} == "{kind}"'
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": guard}}], **spec},
        }

    def _device(self, name: str, kind: str, *, memory: str, model: str, root: str, **fields: Any) -> Obj:
        values = {"name": name, "type": kind, "model": model, "root": root}
        return {
            "name": name,
            "attributes": {key: {"string": value} for key, value in values.items()},
            "capacity": {"memory": {"value": memory}},
            **fields,
        }

    def _slice(self, name: str, *, pool: str = "", count: int = 1, **spec: Any) -> Obj:
        wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": [self._node]}
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{name}-{self._mark}"},
            "spec": {
                "driver": self.driver,
                "pool": {"name": f"{pool or name}-{self._mark}", "generation": 1, "resourceSliceCount": count},
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]},
                **spec,
            },
        }


def _volume_claim(name: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "volumeName": "missing",
        },
    }

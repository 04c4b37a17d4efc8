"""Mutations of the allocator's golden inputs: plausible ones keep the type of every field, wild ones put any value
anywhere. All randomness comes from the generator in the arguments."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

SIZES = ("0", "1", "2", "3", "7", "10", "1Gi", "2Gi", "5Gi", "8Gi", "10Gi", "12Gi", "16Gi", "20Gi")
QUANTITIES = (
    *SIZES,
    *("40Gi", "80Gi", "100Gi", "512Mi", "1536Mi", "10240Mi"),
    *("500m", "1500m", "1.5", "0.1", "2e3", "1k", "3000", "1024", "1Ki"),
)
STRINGS = ("", "a", "b", "x", "gpu", "mig", "node-a", "node-b", "p", "q", "gpu.example.com", "r", "s0", "d0", "d1")
TEXTS = ("", "x", "1Gi", "-5", "1e999999999", "9" * 500, "\x00", "\ud800", "All", "device.driver == 1", "(" * 200)
NUMBERS = (0, 1, -1, 2**31, 2**63, -(2**63), 10**30, 10**4000, 0.5, -0.0, 1e308, float("inf"), float("nan"))
NESTED: tuple[Any, ...] = ([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [1, "x"], ["x"] * 40)
WILD: tuple[Any, ...] = (None, True, False, *NUMBERS, *TEXTS, *NESTED)
EXPRESSIONS = (
    "true",
    "false",
    "device.nope",
    "device.driver == 'gpu.example.com'",
    "device.driver == 'nic.example.com'",
    "device.attributes['gpu.example.com'].m == 1",
    "device.attributes['gpu.example.com'].?m.orValue(0) == 0",
    "has(device.attributes['gpu.example.com'].model)",
    "device.capacity['gpu.example.com'].memory.compareTo(quantity('20Gi')) >= 0",
    "device.allowMultipleAllocations",
    "!device.allowMultipleAllocations",
    "'gpu.example.com' in device.attributes",
    "device.attributes['gpu.example.com'].exists(k, k == 'index')",
    "cel.bind(a, device.attributes['gpu.example.com'], has(a.index) && a.index > 0)",
)
ATTRIBUTES = (
    "gpu.example.com/model",
    "gpu.example.com/numa",
    "gpu.example.com/index",
    "gpu.example.com/m",
    "example.com/root",
    "resource.kubernetes.io/pcieRoot",
    "gpu.example.com/parentUUID",
    "gpu.example.com/profile",
)
GATES = (
    "DRAAdminAccess",
    "DRAPrioritizedList",
    "DRAPartitionableDevices",
    "DRADeviceTaints",
    "DRADeviceBindingConditions",
    "DRAConsumableCapacity",
)
EFFECTS = ("NoSchedule", "NoExecute", "None", "Future")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
Question = dict[str, Any]


def plausible(question: Question, rng: random.Random, most: int = 4) -> Question:
    changed = copy.deepcopy(question)
    for _ in range(rng.randint(1, most)):
        rng.choice(_PLAUSIBLE)(changed, rng)
    return changed


def wild(question: Question, rng: random.Random, most: int = 3) -> Question:
    """A copy with one to ``most`` values exchanged, removed, doubled or renamed, wherever they are."""
    changed = copy.deepcopy(question)
    for _ in range(rng.randint(1, most)):
        places = list(_places(changed))
        if not places:
            break
        holder, key = rng.choice(places)
        action = rng.random()
        if action < 0.6:
            holder[key] = copy.deepcopy(rng.choice(WILD))
        elif action < 0.8:
            del holder[key]
        elif action < 0.9 and isinstance(holder, list):
            holder.extend([holder[key]] * rng.choice((1, 40)))
        elif isinstance(holder, dict):
            holder[str(rng.choice(STRINGS))] = holder[key]
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pending = [value]
    while pending:
        holder = pending.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            yield holder, key
            if isinstance(holder[key], dict | list):
                pending.append(holder[key])


_Change = Callable[[Question, random.Random], None]
_ChangeOf = Callable[[Any, Question, random.Random], None]
_PLAUSIBLE: list[_Change] = []


def _change(weight: int = 1) -> Callable[[_Change], _Change]:
    def register(change: _Change) -> _Change:
        _PLAUSIBLE.extend([change] * weight)
        return change

    return register


def _on(of: Callable[[Question], list[Any]], weight: int = 1) -> Callable[[_ChangeOf], _ChangeOf]:
    """A plausible change of one of the items that ``of`` finds."""

    def register(change: _ChangeOf) -> _ChangeOf:
        def changed(question: Question, rng: random.Random) -> None:
            if items := of(question):
                change(rng.choice(items), question, rng)

        _PLAUSIBLE.extend([changed] * weight)
        return change

    return register


# --- plausible changes; each changes something or leaves the input unchanged ---


def _slices(question: Question) -> list[Any]:
    return [item["spec"] for item in question["slices"]]


def _devices(question: Question) -> list[tuple[Any, Any]]:
    return [(spec, device) for spec in _slices(question) for device in spec.get("devices") or ()]


def _ways(question: Question) -> list[Any]:
    requests = [request for claim in question["claims"] for request in claim["spec"]["devices"].get("requests") or ()]
    found = [request["exactly"] for request in requests if request.get("exactly") is not None]
    return found + [way for request in requests for way in request.get("firstAvailable") or ()]


def _request_names(claim: Any) -> list[str]:
    requests = claim["spec"]["devices"].get("requests") or ()
    subs = [f"{item['name']}/{sub['name']}" for item in requests for sub in item.get("firstAvailable") or ()]
    return [item["name"] for item in requests] + subs


def _pick(items: list[Any], rng: random.Random) -> Any:
    return rng.choice(items) if items else None


@_on(_ways, 2)
def _count(way: Any, question: Question, rng: random.Random) -> None:
    way["allocationMode"], way["count"] = "ExactCount", rng.choice((1, 1, 2, 2, 3, 4, 8, 16, 31, 32, 33))


@_on(_ways)
def _all(way: Any, question: Question, rng: random.Random) -> None:
    way["allocationMode"] = "All"
    way.pop("count", None)


@_change()
def _admin(question: Question, rng: random.Random) -> None:
    requests = [request for claim in question["claims"] for request in claim["spec"]["devices"].get("requests") or ()]
    way = _pick([request["exactly"] for request in requests if request.get("exactly") is not None], rng)
    if way is not None:
        way["adminAccess"] = rng.random() < 0.8


@_on(lambda question: [*_ways(question), *(item["spec"] for item in question["classes"])])
def _selector(way: Any, question: Question, rng: random.Random) -> None:
    selectors = way.setdefault("selectors", [])
    selectors[rng.randint(0, len(selectors)) :] = [{"cel": {"expression": rng.choice(EXPRESSIONS)}}]


@_on(_ways)
def _toleration(way: Any, question: Question, rng: random.Random) -> None:
    item = rng.choice(({"operator": "Exists"}, {"key": "k", "operator": "Equal", "value": rng.choice(("", "v"))}))
    way.setdefault("tolerations", []).append({**item, "effect": rng.choice(EFFECTS)} if rng.random() < 0.4 else item)


@_on(_ways, 2)
def _wanted_capacity(way: Any, question: Question, rng: random.Random) -> None:
    names = [name for _, device in _devices(question) for name in device.get("capacity") or ()] or ["memory"]
    wanted = way.setdefault("capacity", {}).setdefault("requests", {})
    wanted[rng.choice([*names, "memory"])] = rng.choice(QUANTITIES)


@_change(2)
def _more_requests(question: Question, rng: random.Random) -> None:
    claim = _pick(question["claims"], rng)
    requests = claim["spec"]["devices"].get("requests") if claim else None
    if requests and len(requests) < 8:
        extra = copy.deepcopy(rng.choice(requests))
        extra["name"] = f"{extra['name']}x{len(requests)}"
        requests.append(extra)


@_change(2)
def _more_claims(question: Question, rng: random.Random) -> None:
    claim = _pick(question["claims"], rng)
    if claim and len(question["claims"]) < 5:
        extra = copy.deepcopy(claim)
        extra["metadata"]["name"] += f"-{len(question['claims'])}"
        question["claims"].append(extra)


@_change(2)
def _alternatives(question: Question, rng: random.Random) -> None:
    claim = _pick(question["claims"], rng)
    request = _pick(claim["spec"]["devices"].get("requests") or [], rng) if claim else None
    if request and request.get("exactly") is not None:
        way = request.pop("exactly")
        way.pop("adminAccess", None)
        request["firstAvailable"] = [{"name": f"s{place}", **copy.deepcopy(way)} for place in range(rng.randint(1, 3))]


@_on(lambda question: question["claims"], 2)
def _constraint(claim: Any, question: Question, rng: random.Random) -> None:
    names = [name for _, device in _devices(question) for name in device.get("attributes") or ()]
    attribute = rng.choice([*ATTRIBUTES, *(name if "/" in name else f"gpu.example.com/{name}" for name in names)])
    item: dict[str, Any] = {rng.choice(("matchAttribute", "distinctAttribute")): attribute}
    if rng.random() < 0.4:
        known = _request_names(claim) or ["r"]
        item["requests"] = rng.sample(known, rng.randint(1, min(2, len(known))))
    claim["spec"]["devices"].setdefault("constraints", []).append(item)


@_on(_devices, 2)
def _taint(found: Any, question: Question, rng: random.Random) -> None:
    taint = {"key": "k", "effect": rng.choice(EFFECTS), "timeAdded": "2026-01-01T00:00:00Z"}
    found[1].setdefault("taints", []).append({**taint, "value": "v"} if rng.random() < 0.5 else taint)


@_on(_devices, 2)
def _share(found: Any, question: Question, rng: random.Random) -> None:
    found[1]["allowMultipleAllocations"] = rng.random() < 0.85


@_on(lambda question: [entry for _, device in _devices(question) for entry in (device.get("capacity") or {}).values()])
def _policy(found: Any, question: Question, rng: random.Random) -> None:
    policy: dict[str, Any] = {"default": rng.choice(QUANTITIES)}
    if rng.random() < 0.6:
        within = {"min": rng.choice(QUANTITIES[1:])}
        if rng.random() < 0.6:
            within["max"] = rng.choice(QUANTITIES)
        if rng.random() < 0.6:
            within["step"] = rng.choice(QUANTITIES[1:])
        policy["validRange"] = within
    else:
        policy["validValues"] = [rng.choice(QUANTITIES) for _ in range(rng.randint(1, 4))]
    found["requestPolicy"] = policy


@_on(_devices)
def _offered_capacity(found: Any, question: Question, rng: random.Random) -> None:
    name = rng.choice(("memory", "cores", "gpu.example.com/memory"))
    found[1].setdefault("capacity", {}).setdefault(name, {})["value"] = rng.choice(QUANTITIES)


@_on(_devices, 2)
def _attribute(found: Any, question: Question, rng: random.Random) -> None:
    attributes = found[1].setdefault("attributes", {})
    name = rng.choice([*attributes, "model", "numa", "m", "example.com/root"])
    if rng.random() < 0.2:
        attributes.pop(name, None)
    else:
        values = ({"int": rng.randint(0, 2)}, {"string": rng.choice("ab")}, {"bool": rng.random() < 0.5})
        attributes[name] = dict(rng.choice((*values, {"version": f"1.{rng.randint(0, 2)}.0"})))


@_change(2)
def _counter(question: Question, rng: random.Random) -> None:
    sets = [entry for spec in _slices(question) for entry in spec.get("sharedCounters") or ()]
    used = [entry for _, device in _devices(question) for entry in device.get("consumesCounters") or ()]
    holder = _pick([entry["counters"] for entry in [*sets, *used] if entry.get("counters")], rng)
    if holder:
        holder[rng.choice(list(holder))] = {"value": rng.choice(QUANTITIES)}


@_change()
def _consume(question: Question, rng: random.Random) -> None:
    sets = [(spec, entry) for spec in _slices(question) for entry in spec.get("sharedCounters") or ()]
    found, source = _pick(_devices(question), rng), _pick(sets, rng)
    if (
        found
        and source
        and not any(e["counterSet"] == source[1]["name"] for e in found[1].get("consumesCounters") or ())
    ):
        counters = {name: {"value": rng.choice(QUANTITIES)} for name in source[1]["counters"]}
        found[1].setdefault("consumesCounters", []).append({"counterSet": source[1]["name"], "counters": counters})


@_change(3)
def _allocated(question: Question, rng: random.Random) -> None:
    found = _pick(_devices(question), rng)
    if not found:
        return
    spec, device = found
    result = {"request": "r", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
    kind = rng.random()
    if kind < 0.15:
        result["adminAccess"] = True
    elif kind < 0.5:
        result["shareID"] = f"00000000-0000-0000-0000-{rng.randrange(10**12):012}"
        if rng.random() < 0.8:
            names = list(device.get("capacity") or ()) or ["memory"]
            result["consumedCapacity"] = {rng.choice(names): rng.choice(QUANTITIES)}
    number = len(question["allocated_claims"])
    question["allocated_claims"].append(
        {
            "metadata": {"name": f"other-{number}", "namespace": "default", "uid": f"other-{number}"},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }
    )


@_change()
def _release(question: Question, rng: random.Random) -> None:
    if question["allocated_claims"]:
        question["allocated_claims"].pop(rng.randrange(len(question["allocated_claims"])))


@_on(_slices)
def _pool(spec: Any, question: Question, rng: random.Random) -> None:
    field = rng.choice(("generation", "resourceSliceCount", "name"))
    if field == "name":
        spec["pool"]["name"] = rng.choice([other["pool"]["name"] for other in _slices(question)])
    else:
        spec["pool"][field] = max(0, spec["pool"][field] + rng.choice((-1, 1)))


@_change()
def _slice_count(question: Question, rng: random.Random) -> None:
    """Drop or double a slice; half of the time the pool's count follows."""
    if not question["slices"]:
        return
    place = rng.randrange(len(question["slices"]))
    changed = question["slices"][place]
    if rng.random() < 0.5:
        del question["slices"][place]
        difference = -1
    else:
        extra = copy.deepcopy(changed)
        extra["metadata"]["name"] += "-b"
        for device in extra["spec"].get("devices") or ():
            device["name"] += "b"
        for entry in extra["spec"].get("sharedCounters") or ():
            entry["name"] += "b"
        question["slices"].insert(rng.randint(0, len(question["slices"])), extra)
        difference = 1
    if rng.random() < 0.5:
        for spec in _slices(question):
            if (spec["driver"], spec["pool"]["name"]) == (changed["spec"]["driver"], changed["spec"]["pool"]["name"]):
                spec["pool"]["resourceSliceCount"] += difference


@_change()
def _placement(question: Question, rng: random.Random) -> None:
    spec = _pick(_slices(question), rng)
    if not spec:
        return
    for field in ("nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection"):
        spec.pop(field, None)
    kind = rng.random()
    if kind < 0.3:
        spec["perDeviceNodeSelection"] = True
        for device in spec.get("devices") or ():
            _place(device, rng)
    else:
        _place(spec, rng)


def _place(holder: Any, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.4:
        holder["nodeName"] = rng.choice(("node-a", "node-a", "node-b"))
    elif kind < 0.7:
        holder["allNodes"] = True
    else:
        operator = rng.choice(OPERATORS)
        values = {"In": ["a", "1"], "NotIn": ["b"], "Gt": ["1"], "Lt": ["5"]}.get(operator)
        item = {"key": rng.choice(("zone", "n")), "operator": operator, **({"values": values} if values else {})}
        holder["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [item]}]}


@_change()
def _labels(question: Question, rng: random.Random) -> None:
    labels = question["node"]["metadata"].setdefault("labels", {})
    labels[rng.choice(("zone", "n"))] = rng.choice(("a", "b", "1", "3"))


@_on(_devices)
def _binding(found: Any, question: Question, rng: random.Random) -> None:
    if rng.random() < 0.5:
        found[1]["bindsToNode"] = True
    else:
        found[1]["bindingConditions"] = ["ready"]
        found[1]["bindingFailureConditions"] = ["failed"]


@_change()
def _shuffle(question: Question, rng: random.Random) -> None:
    items = rng.choice(
        [question["slices"], question["claims"], *(spec.get("devices") or [] for spec in _slices(question))]
    )
    rng.shuffle(items)


@_on(lambda question: question["claims"])
def _config(claim: Any, question: Question, rng: random.Random) -> None:
    known = _request_names(claim)
    entry: dict[str, Any] = {"opaque": {"driver": "gpu.example.com", "parameters": {"n": rng.randint(0, 9)}}}
    if known and rng.random() < 0.7:
        entry["requests"] = rng.sample(known, rng.randint(1, min(3, len(known))))
    claim["spec"]["devices"].setdefault("config", []).append(entry)


@_change()
def _gates(question: Question, rng: random.Random) -> None:
    question["features"][rng.choice(GATES)] = rng.random() < 0.3

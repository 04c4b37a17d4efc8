"""Patches and applied objects, and the tables of `kubectl get`."""

from datetime import UTC, datetime, timedelta

import pytest

from dra_driver.core.errors import InvalidObjectError
from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.kinds import CONFIG_MAPS, JOBS, PODS, RESOURCE_CLAIMS
from dra_driver.sim.apiserver.patching import APPLY_PATCH, Patch, apply_json_patch, strategic_merge
from dra_driver.sim.apiserver.printers import duration
from dra_driver.sim.apiserver.schema import type_of
from dra_driver.sim.apiserver.serverapply import apply
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.apiserver.verbs import table
from tests.unit.sim_apiserver.builders import Obj, claim


def test_json_patch_operations() -> None:
    target = {"a": [1, 2], "b/c": {"~": 0}}
    done = apply_json_patch(
        target,
        [
            {"op": "test", "path": "/b~1c/~0", "value": 0},
            {"op": "add", "path": "/a/-", "value": 3},
            {"op": "add", "path": "/a/0", "value": 0},
            {"op": "replace", "path": "/a/1", "value": "one"},
            {"op": "remove", "path": "/a/2"},
            {"op": "copy", "from": "/a", "path": "/d"},
            {"op": "move", "from": "/b~1c", "path": "/e"},
        ],
    )
    assert done == {"a": [0, "one", 3], "d": [0, "one", 3], "e": {"~": 0}}


@pytest.mark.parametrize("body", [{}, [{"op": "add"}], [{"op": "fly", "path": "/a"}], [{"op": "add", "path": "a"}]])
def test_what_is_no_json_patch_is_a_bad_request(body: object) -> None:
    with pytest.raises(InvalidObjectError):
        apply_json_patch({}, body)


def test_strategic_merge_finds_list_items_by_their_key() -> None:
    target = {
        "spec": {
            "containers": [
                {"name": "a", "image": "1", "ports": [{"containerPort": 80, "name": "web"}]},
                {"name": "b", "image": "1"},
            ],
            "tolerations": [{"key": "x"}],
        }
    }
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
            "containers": [
                {"name": "a", "image": "2", "ports": [{"containerPort": 80, "protocol": "UDP"}]},
                {"name": "b", "$patch": "delete"},
                {"name": "c", "image": "3"},
            ],
            "tolerations": [{"key": "y"}],
        }
    }
    spec = strategic_merge(target, patch, type_of(PODS))["spec"]
    assert [item["name"] for item in spec["containers"]] == ["c", "a"]
    assert spec["containers"][1]["ports"] == [{"containerPort": 80, "name": "web", "protocol": "UDP"}]
    assert spec["tolerations"] == [{"key": "y"}]


def test_strategic_merge_directives() -> None:
    target = {
        "metadata": {"finalizers": ["a", "b"], "labels": {"x": "1"}},
        "spec": {"volumes": [{"name": "v", "emptyDir": {}}]},
    }
    patch = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["a"],
            "finalizers": ["c"],
            "labels": {"$patch": "replace", "y": "2"},
        },
        "spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]},
    }
    assert strategic_merge(target, patch, type_of(PODS)) == {
        "metadata": {"finalizers": ["b", "c"], "labels": {"y": "2"}},
        "spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    }


def test_strategic_merge_refuses_items_without_their_key() -> None:
    with pytest.raises(InvalidObjectError, match="does not contain declared merge key: name"):
        strategic_merge({}, {"spec": {"containers": [{"image": "a"}]}}, type_of(PODS))


def _apply(store: Store, manager: str, data: Obj, *, force: bool = False) -> Obj:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}, "data": data}
    patch = Patch(body=body, type=APPLY_PATCH, manager=manager, force=force)
    return store.patch(CONFIG_MAPS, "c", patch, namespace="default")


def test_applying_the_same_again_changes_nothing(store: Store) -> None:
    assert _apply(store, "one", {"x": "1"}) == _apply(store, "one", {"x": "1"})


def test_apply_merges_device_status_by_driver_pool_and_device(store: Store) -> None:
    store.create(RESOURCE_CLAIMS, claim())
    results = [
        {"request": "gpu", "driver": driver, "pool": "p", "device": "d"}
        for driver in ("a.example.com", "b.example.com")
    ]
    status = {"allocation": {"devices": {"results": results}}}
    store.patch(RESOURCE_CLAIMS, "c", Patch(body={"status": status}), namespace="default", subresource="status")
    for driver, value in (("a.example.com", 1), ("b.example.com", 2), ("a.example.com", 3)):
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c"},
            "status": {"devices": [{"driver": driver, "pool": "p", "device": "d", "data": {"value": value}}]},
        }
        patch = Patch(body=body, type=APPLY_PATCH, manager=driver)
        made = store.patch(RESOURCE_CLAIMS, "c", patch, namespace="default", subresource="status")
    values = {item["driver"]: item["data"]["value"] for item in made["status"]["devices"]}
    assert values == {"a.example.com": 3, "b.example.com": 2}


def test_a_list_item_that_is_no_longer_applied_goes_whole() -> None:
    def applied(live: Obj | None, *names: str) -> Obj:
        containers = [{"name": name, "image": "i", "ports": [{"containerPort": 80, "name": name}]} for name in names]
        config = {"metadata": {"name": "p"}, "spec": {"containers": containers}}
        return apply(PODS, live, config, "one", "2026-01-01T00:00:00Z", force=False, subresource="")

    left = applied(applied(None, "c", "d", "e", "f"), "e")
    assert [each["name"] for each in left["spec"]["containers"]] == ["e"]


NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "<invalid>"), (0, "0s"), (119, "119s"), (120, "2m"), (200, "3m20s"), (601, "10m"), (10800, "3h"),
        (11000, "3h3m"), (86400, "24h"), (86400 * 3 + 3600, "3d1h"), (86400 * 30, "30d"), (86400 * 800, "2y70d"),
        (86400 * 365 * 9, "9y"),
    ],
)  # fmt: skip
def test_durations_have_two_units_at_most(seconds: int, shown: str) -> None:
    assert duration(seconds) == shown


def _cells(kind: object, obj: Obj) -> list[object]:
    metadata = {"name": "x", "creationTimestamp": rfc3339(NOW - timedelta(seconds=90))} | obj.pop("metadata", {})
    made = table(kind, [obj | {"metadata": metadata}], {}, NOW)  # type: ignore[arg-type]
    cells: list[object] = made["rows"][0]["cells"]
    return cells


def _pod(status: Obj, **metadata: str) -> list[object]:
    spec = {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}
    return _cells(PODS, {"metadata": metadata, "spec": spec, "status": status})[1:4]


RUNNING = {"name": "a", "ready": True, "restartCount": 0, "state": {"running": {}}}
CRASHED_AT = {"terminated": {"finishedAt": "2026-01-01T23:59:00Z"}}
CRASHING = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 3, "lastState": CRASHED_AT}
COMPLETED = {"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}
KILLED = {"state": {"terminated": {"signal": 9, "exitCode": 137}}}
GATED = {"type": "PodScheduled", "reason": "SchedulingGated"}


def init(**state: Obj) -> Obj:
    return {"phase": "Pending", "initContainerStatuses": [{"state": state}]}


@pytest.mark.parametrize(
    ("status", "cells"),
    [
        ({"phase": "Pending"}, ["0/2", "Pending", "0"]),
        ({"phase": "Failed", "reason": "Evicted"}, ["0/2", "Evicted", "0"]),
        ({"phase": "Pending", "conditions": [GATED]}, ["0/2", "SchedulingGated", "0"]),
        (init(running={}), ["0/2", "Init:0/1", "0"]),
        (init(waiting={"reason": "ErrImagePull"}), ["0/2", "Init:ErrImagePull", "0"]),
        (init(terminated={"exitCode": 3}), ["0/2", "Init:ExitCode:3", "0"]),
        ({"phase": "Running", "containerStatuses": [RUNNING, RUNNING]}, ["2/2", "Running", "0"]),
        (
            {"phase": "Running", "containerStatuses": [RUNNING, CRASHING]},
            ["1/2", "CrashLoopBackOff", "3 (60s ago)"],
        ),
        ({"phase": "Succeeded", "containerStatuses": [COMPLETED]}, ["0/2", "Completed", "0"]),
        ({"phase": "Running", "containerStatuses": [RUNNING, COMPLETED]}, ["1/2", "NotReady", "0"]),
        ({"phase": "Failed", "containerStatuses": [KILLED]}, ["0/2", "Signal:9", "0"]),
    ],
)
def test_pods_show_ready_status_and_restarts(status: Obj, cells: list[str]) -> None:
    assert _pod(status) == cells


def test_a_deleted_pod_is_terminating_unless_it_has_finished() -> None:
    assert _pod({"phase": "Running", "containerStatuses": [RUNNING]}, deletionTimestamp="x")[1] == "Terminating"
    assert _pod({"phase": "Succeeded"}, deletionTimestamp="x")[1] == "Succeeded"


def test_jobs_count_completions() -> None:
    started = {"startTime": "2026-01-01T23:59:00Z"}
    complete: Obj = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
    complete["completionTime"] = "2026-01-01T23:59:30Z"
    done = _cells(JOBS, {"spec": {"completions": 1}, "status": started | complete})
    assert done[1:4] == ["Complete", "1/1", "30s"]
    running = _cells(JOBS, {"spec": {"parallelism": 3}, "status": started})
    assert running[1:4] == ["Running", "0/1 of 3", "60s"]

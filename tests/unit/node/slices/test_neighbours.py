"""What of others' resource slices is kept, and which pools have GPUs of this node."""

from typing import Any

from dra_driver.node.slices.untrusted_slice import Neighbour, is_of, neighbours, slimmed

DRIVER, POOL = "gpu.nvidia.com", "node-a/gpu.nvidia.com"
OWN = {"GPU-0", "GPU-1"}


def stored(driver: str, pool: str, *attributes: dict[str, Any], name: str = "a") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": "7", "managedFields": [{}]},
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": 1},
            "devices": [{"name": "d", "attributes": own, "capacity": {}} for own in attributes],
        },
    }


def uuid(value: str, name: str = "uuid") -> dict[str, Any]:
    return {name: {"string": value}}


def found(*items: dict[str, Any]) -> tuple[Neighbour, ...]:
    return neighbours([slimmed(item) for item in items], DRIVER, POOL, OWN)


def test_only_names_versions_and_uuids_are_kept() -> None:
    """The devices of eight GPUs in all their partitions are megabytes."""
    assert slimmed(stored("other", "p", uuid("GPU-0"), uuid("GPU-0", "parentUUID"), uuid("MIG-1"))) == {
        "metadata": {"name": "a", "resourceVersion": "7"},
        "spec": {"driver": "other", "pool": {"name": "p"}},
        "gpus": ("GPU-0",),
    }


def test_another_driver_with_the_same_gpu_is_found() -> None:
    """Whole or as the parent of partitions, with or without the driver's domain in the attribute's name."""
    pool = Neighbour(driver="other", pool="p", gpus=frozenset({"GPU-0", "GPU-1"}))
    assert found(stored("other", "p", uuid("GPU-0")), stored("other", "p", uuid("GPU-1", "other/parentUUID"))) == (
        pool,
    )


def test_the_same_driver_in_another_pool_is_found() -> None:
    """NVIDIA's driver has this driver's default name; its pool is the node's name."""
    assert found(stored(DRIVER, "node-a", uuid("GPU-0"))) == (
        Neighbour(driver=DRIVER, pool="node-a", gpus=frozenset({"GPU-0"})),
    )


def test_own_slices_and_other_devices_do_not_count() -> None:
    """A NIC may say which GPU it is beside; a driver of GPUs may have those of another machine behind the same name."""
    nic = {"nearestGpu": {"string": "GPU-0"}, "uuid": {"string": "nic-1"}}
    assert (
        found(stored(DRIVER, POOL, uuid("GPU-0")), stored("nic", "p", nic), stored("other", "p", uuid("GPU-9"))) == ()
    )


def test_objects_of_any_shape_are_read() -> None:
    """Any client may write resource slices."""
    wrong: list[dict[str, Any]] = [
        {},
        {"metadata": None, "spec": None},
        {"spec": {"devices": [None, {"attributes": {"uuid": None}}], "pool": 3}},
        {"spec": {"devices": {"uuid": "GPU-0"}}},
        stored("other", "p", {"uuid": {"int": 3}}),
    ]
    assert found(*wrong) == ()
    assert not is_of(slimmed({}), DRIVER)
    assert is_of(slimmed(stored(DRIVER, "x")), DRIVER)

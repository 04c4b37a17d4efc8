"""The embedded scheduler allocates one GPU in several forms: whole, as partitions, as shares."""

import pytest

from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.controllers.claims import ClaimController
from dra_driver.sim.scheduler import EmbeddedScheduler
from tests.fakes.dra_objects import DRIVER, claim, device_class, exactly, gpu, node, resource_slice

SLICES = 8
TYPE = f'device.attributes["{DRIVER}"].type'
ONE_G = f'{TYPE} == "mig"'
WHOLE = f'{TYPE} == "gpu"'


def _uses(*memory_slices: int, multiprocessors: int) -> list[Obj]:
    counters = {f"memory-slice-{at}": {"value": "1"} for at in memory_slices}
    counters["multiprocessors"] = {"value": str(multiprocessors)}
    return [{"counterSet": "gpu-0-counter-set", "counters": counters}]


def _partition(start: int) -> Obj:
    device = gpu(f"gpu-0-mig-1g10gb-19-{start}", memory="9728Mi", type="mig")
    return {**device, "consumesCounters": _uses(start, multiprocessors=16)}


@pytest.fixture
def store() -> Store:
    """A node with one H100: whole or as seven partitions, by counters."""
    store = Store()
    store.create(NODES, {**node("a"), "spec": {}})
    total = _uses(*range(SLICES), multiprocessors=132)
    sets = [{"name": "gpu-0-counter-set", "counters": total[0]["counters"]}]
    counters = resource_slice("a", count=2, name="a-counters")
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = sets
    store.create(RESOURCE_SLICES, counters)
    whole = {**gpu("gpu-0"), "consumesCounters": total}
    store.create(RESOURCE_SLICES, resource_slice("a", whole, *map(_partition, range(7)), count=2))
    store.create(DEVICE_CLASSES, device_class(expression=f'device.driver == "{DRIVER}"'))
    return store


def pod(store: Store, name: str, expression: str, **request: object) -> None:
    """A pod with a claim for one device that matches the expression."""
    store.create(RESOURCE_CLAIMS, claim(name, exactly("gpu", expression, **request)))
    names = [{"name": "gpu", "resourceClaimName": name}]
    container = {"name": "main", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
    body = {"metadata": {"name": name}, "spec": {"containers": [container], "resourceClaims": names}}
    store.create(PODS, body, namespace="default")


def delete(store: Store, name: str, controller: ClaimController) -> None:
    """Delete the pod; the controller then deallocates its claim."""
    store.delete(PODS, name, "default")
    if store.find(PODS, name, "default") is not None:
        current = store.get(PODS, name, "default")
        current["status"]["phase"] = "Succeeded"
        store.update_status(PODS, current)
    controller.step()


def running(store: Store) -> set[str]:
    return {item["metadata"]["name"] for item in store.list(PODS).items if dig(item, "spec", "nodeName")}


def result_of(store: Store, name: str) -> Obj:
    (result,) = store.get(RESOURCE_CLAIMS, name, "default")["status"]["allocation"]["devices"]["results"]
    assert isinstance(result, dict)
    return result


def test_seven_partitions_then_the_whole(store: Store) -> None:
    """Counters make the forms exclude each other: an eighth partition and the whole GPU wait for the last partition."""
    for at in range(8):
        pod(store, f"part-{at}", ONE_G)
    pod(store, "whole", WHOLE)
    scheduler, controller = EmbeddedScheduler(store), ClaimController(store)
    scheduler.step()
    assert running(store) == {f"part-{at}" for at in range(7)}
    store.delete(PODS, "part-7", "default")
    for at in range(6):
        delete(store, f"part-{at}", controller)
    scheduler = EmbeddedScheduler(store)
    scheduler.step()
    assert "whole" not in running(store)
    delete(store, "part-6", controller)
    EmbeddedScheduler(store).step()
    assert "whole" in running(store)


def _share(store: Store) -> None:
    """Make the GPU of node a shareable."""
    for name in ("a-slice", "a-counters"):
        store.delete(RESOURCE_SLICES, name)
    device = gpu("gpu-0")
    device["allowMultipleAllocations"] = True
    device["capacity"]["memory"]["requestPolicy"] = {"default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    store.create(RESOURCE_SLICES, resource_slice("a", device, generation=2))


def test_shares_consume_capacity(store: Store) -> None:
    """Each allocation has a share id and its capacity; a share beyond the remaining capacity waits."""
    _share(store)
    for gib in (10, 20, 30):
        pod(store, f"g{gib}", WHOLE, capacity={"requests": {"memory": f"{gib}Gi"}})
    pod(store, "over", WHOLE, capacity={"requests": {"memory": "30Gi"}})
    pod(store, "plain", WHOLE)
    EmbeddedScheduler(store).step()
    assert running(store) == {"g10", "g20", "g30"}
    results = [result_of(store, f"g{gib}") for gib in (10, 20, 30)]
    assert [result["consumedCapacity"] for result in results] == [{"memory": f"{gib}Gi"} for gib in (10, 20, 30)]
    assert len({result["shareID"] for result in results}) == 3
    assert {result["device"] for result in results} == {"gpu-0"}

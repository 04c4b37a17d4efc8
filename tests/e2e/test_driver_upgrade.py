"""The NVIDIA driver is given up, replaced and taken again while pods run on its GPUs: none of them is restarted.

The GPUs are simulated, and the file that describes them stands for the installed driver: the node process must not
read it while the driver is given up.
"""

from pathlib import Path

import pytest

from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import (
    ASKED,
    GONE_S,
    NOTICED_S,
    containers,
    events,
    holds,
    marked,
    tainted,
    versions,
    wait,
    wait_given_up,
    wait_taken,
)
from tests.e2e.forms import Forms, slice_of, whole
from tests.e2e.gates import PARTITIONS, TAINTS
from tests.e2e.host import Folders, Host

DRA_LABEL = "nvidia.com/gpu.deploy.dra-driver"
OLD, NEW = "580.65.6", "590.44.1"  # as versions are published
GPUS = "driverVersion: {}\ngpus:\n- {{model: h100-sxm5-80gb}}\n- {{model: l4-24gb, count: 8}}\n"
UNLOADED = "driverUnavailable: the kernel module is unloaded\ngpus: []\n"
SLICES = tuple(f"part-{number}" for number in range(3))
WHOLE = tuple(f"whole-{number}" for number in range(7))


@pytest.fixture
def driver_file(tmp_path: Path) -> Path:
    path = tmp_path / "gpus.yaml"
    path.write_text(GPUS.format("580.65.06"))
    return path


@pytest.fixture
def requirements(driver_file: Path) -> Requirements:
    return Requirements(nodes=(("gpu-a", str(driver_file)),))


def replace_driver(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@pytest.mark.needs(PARTITIONS, TAINTS)
def test_ten_pods_run_on_while_the_driver_is_replaced(
    own_host: Host, forms: Forms, node_name: str, driver_file: Path, node_folders: Folders
) -> None:
    cluster = forms.cluster
    for name in SLICES:
        forms.create(name, slice_of("1g.10gb"))
    forms.wait_ready(*SLICES)
    for name in WHOLE:
        forms.create(name, whole())
    names = (*SLICES, *WHOLE)
    forms.wait_ready(*names)
    logs = {name: forms.log(name) for name in names}
    before = {name: containers(forms.get(name)) for name in names}
    claims, published, process = node_folders.claims_in_journal(), set(tainted(cluster)), own_host.process.process
    assert (len(before), len(claims), versions(cluster)) == (10, 10, {OLD})
    past = events(cluster, node_name, "DriverDetached")

    with marked(cluster, node_name, "annotations", ASKED, "upgrade to 590"):
        wait_given_up(cluster, node_name, past)
        replace_driver(driver_file, UNLOADED)
        forms.create("next-part", slice_of("1g.10gb"))
        forms.create("next-whole", whole())
        wait(lambda: None if forms.waits("next-part", "next-whole") else "they do not wait", NOTICED_S)
        holds(lambda: forms.waits("next-part", "next-whole"))  # free devices are left: it is the taint
        assert set(tainted(cluster)) == published
        assert versions(cluster) == {OLD}
        replace_driver(driver_file, GPUS.format("590.44.01"))

    wait_taken(cluster, NEW)
    forms.wait_ready("next-part", "next-whole")
    assert own_host.process.process is process
    assert {name: containers(forms.get(name)) for name in names} == before
    assert all(restarts == 0 for found in before.values() for *_, restarts in found)
    assert {name: forms.log(name) for name in names} == logs
    assert claims <= node_folders.claims_in_journal()
    for name in ("next-part", "next-whole", *names):
        forms.sees(name)


def test_a_pod_is_deleted_while_the_driver_is_given_up(forms: Forms, node_name: str, node_folders: Folders) -> None:
    """A whole GPU's pod goes at once: a drain for the upgrade must not wait for the driver that it removes."""
    cluster = forms.cluster
    forms.run("leaving", whole())
    past = events(cluster, node_name, "DriverDetached")
    with marked(cluster, node_name, "annotations", ASKED, "upgrade"):
        wait_given_up(cluster, node_name, past)
        forms.delete("leaving")
        wait(lambda: ", ".join(node_folders.claims_in_journal()), GONE_S)
    wait_taken(cluster, OLD)


def test_paused_for_an_upgrade_it_waits_for_the_last_claim(forms: Forms, node_name: str, driver_file: Path) -> None:
    """As NVIDIA's k8s-driver-manager asks: its label taints at once, and the driver is given up after the last pod."""
    cluster = forms.cluster
    forms.run("last", whole())
    past = events(cluster, node_name, "DriverDetached")
    with marked(cluster, node_name, "labels", DRA_LABEL, "paused-for-driver-upgrade"):
        wait(lambda: None if all(tainted(cluster).values()) else "devices without a taint", NOTICED_S)
        holds(lambda: events(cluster, node_name, "DriverDetached") == past)
        forms.delete("last")
        wait_given_up(cluster, node_name, past)
        replace_driver(driver_file, GPUS.format("590.44.01"))
    wait_taken(cluster, NEW)
    forms.run("next", whole())
    forms.sees("next")

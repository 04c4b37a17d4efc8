"""What a real container runtime does with the CDI files: device nodes that open, and mounts for MPS."""

import re
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.simulated.root import instance_minor
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.forms import LIST, Forms, share, slice_of
from tests.e2e.gates import PARTITIONS, SHARES
from tests.e2e.host import Host

ONE_H100 = (("gpu-a", "1xh100-sxm5-80gb"),)
REQUIREMENTS = Requirements(nodes=ONE_H100)
MPS_POLICY = Path(__file__).parent / "policies" / "mps-h100.yaml"
CAPS_MAJOR, GPU_MAJOR = 237, 195  # what the simulated driver's /proc/devices says
# As a program would open it. There is no kernel module behind a simulated GPU's node: to be let in means ENXIO.
OPEN = "for node in /dev/nvidia0 /dev/nvidia-caps/*; do (: <$node) 2>&1 | sed 's/.*: /opened /'; done"
NODES = "stat -c 'node %n %Hr:%Lr %a' /dev/nvidia0 /dev/nvidia-caps/*"
EVERY_CAP = (
    "mkdir /tmp/all; for n in $(seq 1 140); do mknod /tmp/all/$n c 237 $n && "
    "(: </tmp/all/$n) 2>&1 | grep -q 'No such device or address' && echo opens $n; done"
)
MPS = (
    "cat /tmp/nvidia-mps/nvidia-cuda-mps-control.pid | sed 's/^/pid /'; "
    "stat -c 'folder %n %a %D:%i' /tmp/nvidia-mps /dev/shm; touch /tmp/nvidia-mps/e2e-$HOSTNAME && echo writable; "
    # A hidden program is a file that does not execute.
    '[ -x "$(command -v nvidia-cuda-mps-control)" ] || echo without control program'
)

shared_gpu = pytest.mark.parametrize(
    "requirements", [Requirements(nodes=ONE_H100, policies=(MPS_POLICY,))], ids=["shared"], indirect=True
)


def words(log: str, first: str) -> list[str]:
    return [line.removeprefix(f"{first} ") for line in log.splitlines() if line.startswith(f"{first} ")]


def capabilities(own_host: Host, uuid: str) -> list[int]:
    (gpu,) = own_host.hardware.backend().snapshot().gpus
    (instance,) = (one for one in gpu.mig_instances if one.device and one.device.uuid == uuid)
    return [instance_minor(gpu.minor, instance.gi_id), instance_minor(gpu.minor, instance.gi_id, 0)]


@pytest.mark.needs(PARTITIONS)
def test_a_slices_container_has_its_two_capability_nodes_and_can_open_no_other(own_host: Host, forms: Forms) -> None:
    """The runtime creates the nodes although the host has none; another MIG device's node, created by hand, does not
    open."""
    names = ("one", "other")
    for name in names:
        forms.create(name, slice_of("1g.10gb"), f"{LIST}; {NODES}; {OPEN}; {EVERY_CAP}; echo done")
    forms.wait_ready(*names)
    for name in names:
        forms.wait_line(name, "done")
        caps = capabilities(own_host, forms.partition(name))
        log = forms.log(name)
        expected = [f"/dev/nvidia0 {GPU_MAJOR}:0 666"]
        expected += [f"/dev/nvidia-caps/nvidia-cap{number} {CAPS_MAJOR}:{number} 444" for number in sorted(caps)]
        assert sorted(words(log, "node")) == sorted(expected)
        assert words(log, "opened") == ["No such device or address"] * 3
        assert sorted(int(number) for number in words(log, "opens")) == sorted(caps)
    assert not Path("/dev/nvidia-caps").exists()


@pytest.mark.needs(SHARES)
@shared_gpu
def test_shares_containers_have_one_daemons_pipes_and_shared_memory(own_host: Host, forms: Forms) -> None:
    names = ("one", "other")
    for name in names:
        forms.run(name, share("10Gi", 20), f"{LIST}; {MPS}; echo done")
        forms.wait_line(name, "done")
    (daemon,) = own_host.hardware.daemons()
    folder = own_host.hardware.state / "mps" / "daemons" / daemon / "pipe"
    pid = (folder / "nvidia-cuda-mps-control.pid").read_text().strip()
    views = [words(forms.log(name), "folder") for name in names]
    assert views[0] == views[1]
    assert [re.sub(r" \S+$", "", view) for view in views[0]] == ["/tmp/nvidia-mps 1777", "/dev/shm 1777"]
    assert views[0][0].endswith(f":{folder.stat().st_ino}")
    for name in names:
        assert words(forms.log(name), "pid") == [pid]
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in forms.log(name).splitlines()
        assert "writable" in forms.log(name).splitlines()
        assert "without control program" in forms.log(name).splitlines()
        assert (folder / f"e2e-{name}").exists()

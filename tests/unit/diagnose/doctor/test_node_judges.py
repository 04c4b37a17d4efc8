"""Checks of a node over facts that no folder of a test can have."""

from pathlib import Path

import pytest

from dra_driver.config.settings import NodeSettings
from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.doctor.node import NODE_CHECKS, LocalFacts
from dra_driver.diagnose.doctor.node_devices import DeviceNodeFacts
from dra_driver.diagnose.doctor.node_files import DiskFacts, FileFacts
from dra_driver.diagnose.doctor.node_kubelet import SocketFacts
from dra_driver.diagnose.doctor.node_runtime import RuntimeFacts
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.diagnose.node_state.state import CdiState, JournalState, MpsState, NodeState, SocketState
from dra_driver.node.claims.inspection import JournalContent

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
VIEW = HostView(settings=NodeSettings(node_name="node-1"))


def found_by(check: str, facts: LocalFacts) -> Finding:
    """The only finding of a check."""
    (finding,) = next(each for each in NODE_CHECKS if each.name == check).run(facts, f"node/{facts.node}")
    return finding


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "status", "seen"),
    [
        (100 * 1024, 1000, FAIL, "/plugins has 100 KiB free"),
        (1 << 30, 3, FAIL, "/plugins has 3 inodes free"),
        (8 << 20, 1000, WARN, "/plugins has 8 MiB free"),
        (1 << 30, 1000, OK, "/plugins has 1024 MiB free"),
        (1 << 30, None, OK, "/plugins has 1024 MiB free"),
    ],
)
def test_a_full_disk_is_named_with_what_is_left(
    free_bytes: int, free_files: int | None, status: Status, seen: str
) -> None:
    """Some file systems count no inodes."""
    disk = DiskFacts(folder="/plugins", what="the journal", free_bytes=free_bytes, free_files=free_files)
    finding = found_by("disk", LocalFacts(node="node-1", view=VIEW, files=FileFacts(disks=(disk,))))
    assert finding.status is status
    assert finding.seen.startswith(seen)
    assert (status is OK) == (not finding.fix)


@pytest.mark.parametrize(
    ("selinux", "version", "seen"),
    [
        ("1", 2, "SELinux is enforcing; cgroup version 2"),
        ("0", 1, "SELinux is permissive; cgroup version 1"),
        (None, None, "no SELinux; the cgroup version cannot be seen"),
    ],
)
def test_what_decides_who_opens_devices_is_told(selinux: str | None, version: int | None, seen: str) -> None:
    """For the reader of a report: neither is wrong."""
    devices = DeviceNodeFacts(selinux=selinux, cgroup_version=version)
    finding = found_by("device-access", LocalFacts(node="node-1", view=VIEW, devices=devices))
    assert (finding.status, finding.seen, finding.object) == (OK, seen, "node/node-1")


def test_names_of_checks_are_unique() -> None:
    """They are part of the report."""
    names = [check.name for check in NODE_CHECKS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("check", "facts"),
    [
        ("plugin-folders", LocalFacts(node="n", view=VIEW, sockets=SocketFacts(problem="/reg: Permission denied"))),
        ("device-plugin", LocalFacts(node="n", view=VIEW, sockets=SocketFacts(device_plugins=None))),
        ("runtime-answers", LocalFacts(node="n", view=VIEW, runtime=RuntimeFacts(socket="/run/x.sock", denied=True))),
    ],
)
def test_what_only_root_may_see_is_unknown(check: str, facts: LocalFacts) -> None:
    """A user without rights gets no verdict about what is hidden from it."""
    finding = found_by(check, facts)
    assert (finding.status, finding.fix) == (Status.UNKNOWN, "Run it as root.")


PLUGIN = Path("/plugins/gpu.nvidia.com")


def records(*, exists: bool = True, problem: str | None = None) -> NodeState:
    """A state whose socket is dead and whose CDI folder has a broken file: other checks report both."""
    return NodeState(
        plugin=PLUGIN,
        exists=exists,
        boot_id="b",
        journal=JournalState(path=PLUGIN / "state.db", content=JournalContent()),
        cdi=CdiState(folder=Path("/cdi"), problems=("no CDI file",)),
        mps=MpsState(),
        sockets=(SocketState(path=PLUGIN / "dra.sock", served=False),),
        health_problem=problem,
    )


@pytest.mark.parametrize(
    ("found", "status", "seen"),
    [
        (records(), OK, "journal, backups and daemons agree, 0 claims in the journal"),
        (records(problem="not JSON"), WARN, "health of GPUs: not JSON"),
        (
            PermissionError(13, "Permission denied", "/plugins"),
            Status.UNKNOWN,
            "/plugins cannot be read: Permission denied",
        ),
    ],
)
def test_records_warn_at_most(found: NodeState | OSError, status: Status, seen: str) -> None:
    """The node process repairs its records, so they do not keep GPUs from working."""
    finding = found_by("records", LocalFacts(node="n", view=VIEW, records=found))
    assert (finding.status, finding.layer, finding.seen) == (status, Layer.PREPARE, seen)
    assert finding.fix[:1].isupper() or status is OK


def test_a_node_without_the_drivers_folder_has_no_records() -> None:
    """Nothing is reported of records that cannot exist."""
    (check,) = [each for each in NODE_CHECKS if each.name == "records"]
    assert check.run(LocalFacts(node="n", view=VIEW, records=records(exists=False))) == ()

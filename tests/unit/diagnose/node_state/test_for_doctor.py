"""Disagreements on a node as findings of the doctor."""

from pathlib import Path

from dra_driver.core.finding import Layer, Status
from dra_driver.diagnose.node_state.findings import Disagreement
from dra_driver.diagnose.node_state.for_doctor import as_findings, unreadable
from dra_driver.diagnose.node_state.state import CdiState, JournalState, MpsState, NodeState, SocketState
from dra_driver.node.claims.inspection import JournalContent

SOCKET = Path("/plugins/gpu.nvidia.com/dra.sock")


def state(*, exists: bool = True, journal: JournalState | None = None) -> NodeState:
    return NodeState(
        plugin=Path("/plugins/gpu.nvidia.com"),
        exists=exists,
        boot_id="b",
        journal=journal or JournalState(path=Path("/plugins/gpu.nvidia.com/state.db"), content=JournalContent()),
        cdi=CdiState(folder=Path("/cdi")),
        mps=MpsState(),
        sockets=(SocketState(path=SOCKET, served=False),),
    )


def test_a_problem_is_a_warning_and_a_remark_is_none() -> None:
    """The node process mends its records, so they do not keep GPUs from working."""
    problem = Disagreement(about="claim default/a", seen="it has no CDI file", advice="delete it")
    remark = Disagreement(about="/plugins/x", seen="a damaged journal was kept", advice="remove it", is_problem=False)
    found = as_findings("node-1", state(), [problem, remark])
    assert [finding.status for finding in found] == [Status.WARN, Status.OK]
    assert (found[0].layer, found[0].object, found[0].fix) == (Layer.PREPARE, "node/node-1", "Delete it.")
    assert found[0].seen == "claim default/a: it has no CDI file"


def test_what_the_doctor_looks_at_itself_is_left_out() -> None:
    """Sockets and CDI files would be told twice."""
    abouts = ("sockets", str(SOCKET), "/cdi")
    told = [Disagreement(about=about, seen="x", advice="y") for about in abouts]
    (found,) = as_findings("node-1", state(), told)
    assert (found.status, found.seen) == (
        Status.OK,
        "journal, backups and daemons agree, 0 claims in the journal",
    )


def test_a_node_without_the_drivers_folder_has_no_records() -> None:
    """Nothing is told of records that cannot exist."""
    assert as_findings("node-1", state(exists=False), []) == ()


def test_records_that_cannot_be_read_are_unknown() -> None:
    """As for a user who is not root."""
    (found,) = unreadable("node-1", PermissionError(13, "Permission denied", "/plugins"))
    assert (found.status, found.seen) == (Status.UNKNOWN, "/plugins cannot be read: Permission denied")
    assert found.fix == "Run it as root."

"""What disagrees on a node, as findings of the doctor. Pure."""

from collections.abc import Iterable

from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.diagnose.node_state.findings import Disagreement
from dra_driver.diagnose.node_state.state import NodeState

CHECK = "records"
_LOOKED_AT_BY_DOCTOR = frozenset({"sockets"})


def as_findings(node: str, state: NodeState, found: Iterable[Disagreement]) -> tuple[Finding, ...]:
    """A finding for each disagreement, or one that there is none; sockets and CDI files have checks of their own."""
    looked_at = {str(each.path) for each in state.sockets} | _LOOKED_AT_BY_DOCTOR | {str(state.cdi.folder)}
    findings = tuple(_finding(node, each) for each in found if each.about not in looked_at)
    if findings or not state.exists:
        return findings
    claims = len(state.journal.content.entries) if state.journal.content else 0
    seen = f"journal, backups and daemons agree, {claims} claim{'' if claims == 1 else 's'} in the journal"
    return (Finding(check=CHECK, layer=Layer.PREPARE, status=Status.OK, object=f"node/{node}", seen=seen),)


def unreadable(node: str, error: OSError) -> tuple[Finding, ...]:
    """The records cannot be read, such as by a user who is not root."""
    return (
        Finding(
            check=CHECK,
            layer=Layer.PREPARE,
            status=Status.UNKNOWN,
            object=f"node/{node}",
            seen=f"{error.filename} cannot be read: {error.strerror}",
            expected="the driver's journal and files",
            fix="Run it as root.",
        ),
    )


def _finding(node: str, each: Disagreement) -> Finding:
    """A problem of the records does not keep GPUs from working: only one that the node process cannot mend would."""
    return Finding(
        check=CHECK,
        layer=Layer.PREPARE,
        status=Status.WARN if each.is_problem else Status.OK,
        object=f"node/{node}",
        seen=f"{each.about}: {each.seen}",
        expected="journal, files, daemons and hardware agree",
        fix=f"{each.advice[:1].upper()}{each.advice[1:]}.",
    )

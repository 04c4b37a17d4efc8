"""``dra-driver state``: show and check the driver's state on a node, and repair it on request."""

import argparse
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from dra_driver.core.document import JsonDocument, camel, to_wire
from dra_driver.core.finding import Finding
from dra_driver.diagnose.node_settings import add_flags, load_settings
from dra_driver.node.claims.inspection import GpuNote

if TYPE_CHECKING:
    from dra_driver.diagnose.node_state import NodeState

DESCRIPTION: Final = """\
Show this driver's state on the node (journal, CDI files, GPU state backups, MPS daemons, sockets, health) and report
contradictions. It changes nothing, and a node process may run. It reads GPUs only with --hardware, which opens NVML
briefly.

With --repair it takes the same steps as the start of a node process. It refuses while a node process runs, because
that process repairs its state automatically. In the pod:
  kubectl -n dra-driver exec ds/dra-driver-node -- dra-driver state
"""
EPILOG: Final = "exit status: 0 no contradiction, 1 a contradiction, 2 wrong usage, or --repair was refused."
HEADINGS: Final = ("CLAIM", "STATE", "DEVICES", "CDI FILE", "UID")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hardware", action="store_true", help="also compare with the GPUs")
    parser.add_argument("--repair", action="store_true", help="repair first, then show")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="format (default: text)")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    from dra_driver.diagnose.node_state import find_disagreements, read_state, repair
    from dra_driver.diagnose.node_state.stopped import look_at_hardware

    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    settings, places = load_settings(args)
    left = repair(settings, places) if args.repair else ()
    state = read_state(places, hardware=look_at_hardware(settings) if args.hardware else None)
    found = find_disagreements(state)
    if args.output == "json":
        print(json.dumps(to_wire(document_of(state, found, left)), indent=2))
    else:
        print("\n".join(_text(state, found, left)))
    return 1 if left or any(_is_problem(finding) for finding in found) else 0


def _text(state: "NodeState", found: tuple[Finding, ...], left: tuple[str, ...]) -> Iterator[str]:
    from dra_driver.core.command_line.table import render

    for name, value in _summary(state).items():
        yield f"{name + ':':<14} {value}"
    rows = [
        (
            f"{each.namespace}/{each.claim}",
            each.state,
            ", ".join(each.devices),
            "yes" if each.cdi_file else "no",
            each.uid,
        )
        for each in _claims(state)
    ]
    if rows:
        yield ""
        yield render(HEADINGS, rows)
    for problem in left:
        yield f"\nnot repaired: {problem}"
    for finding in found:
        kind = "problem" if _is_problem(finding) else "remark"
        yield f"\n{kind}: {finding.object}: {finding.seen}\n  {finding.fix}"
    yield "" if not found else "\n" + _counted(found)
    if not found:
        yield "no contradictions"


def _summary(state: "NodeState") -> dict[str, str]:
    journal, content = state.journal, state.journal.content
    if content is not None:
        shown = f"{len(content.entries)} claim{'' if len(content.entries) == 1 else 's'}" + (
            ", being rebuilt" if content.rebuild_pending else ""
        )
    else:
        shown = "cannot be read" if journal.problem else "missing"
    daemons = ", ".join(f"{each.id} {each.status or 'not started'}" for each in state.mps.daemons) or "no daemons"
    gpus = "not read (--hardware reads them)" if state.gpus is None else f"{len(state.gpus)} found"
    unsaved = "cannot be read" if state.health_problem else "none saved"
    return {
        "folder": str(state.plugin),
        "node process": ", ".join(sorted(state.runs)) if state.runs else "none runs",
        "journal": f"{journal.path}, {shown}",
        "CDI files": f"{state.cdi.folder}, {'base and ' if state.cdi.base else ''}{len(state.cdi.claims)} of claims",
        "GPU changes": _changes(state),
        "GPUs": gpus,
        "MPS": f"{daemons}; {_host(state)}",
        "sockets": ", ".join(f"{each.path.name}{'' if each.served else ' (dead)'}" for each in state.sockets) or "none",
        "health": f"{state.sick_gpus} GPUs with faults" if state.sick_gpus is not None else unsaved,
    }


def _host(state: "NodeState") -> str:
    if state.mps.host_problem is None:
        return "host is ready"
    return "host hangs" if state.mps.host_lives else "no host"


def _changes(state: "NodeState") -> str:
    content = state.journal.content
    if content is None:
        return "unknown"
    notes = [f"{note.key} of {note.gpu}" for note in content.notes]
    orphans = [f"partition {orphan.partition.id} without a claim" for orphan in content.orphans]
    return ", ".join([*notes, *orphans]) or "none"


def _counted(found: tuple[Finding, ...]) -> str:
    problems = sum(_is_problem(finding) for finding in found)
    notes = len(found) - problems
    return f"{problems} problem{'' if problems == 1 else 's'}, {notes} note{'' if notes == 1 else 's'}"


class StateClaim(Struct, frozen=True, kw_only=True, rename=camel):
    """A claim of the journal; ``state`` is preparing, prepared or unpreparing."""

    namespace: str
    claim: str
    uid: str
    state: str
    devices: Sequence[str]
    cdi_file: bool


class NodeStateDocument(JsonDocument, frozen=True, kw_only=True, tag="NodeState"):
    """The state of this driver on a node. ``gpu_notes`` are changes that outlive a claim."""

    summary: Mapping[str, str]
    items: Sequence[StateClaim]
    gpu_notes: Sequence[GpuNote]
    orphaned_partitions: Sequence[str]
    not_repaired: Sequence[str]
    findings: Sequence[Finding]


def _claims(state: "NodeState") -> Iterator[StateClaim]:
    for entry in state.journal.content.entries if state.journal.content else ():
        yield StateClaim(
            namespace=entry.ref.namespace,
            claim=entry.ref.name,
            uid=entry.ref.uid,
            state=str(entry.state),
            devices=[device.device for device in entry.devices],
            cdi_file=entry.ref.uid in state.cdi.claims,
        )


def document_of(state: "NodeState", found: Sequence[Finding], left: Sequence[str]) -> NodeStateDocument:
    content = state.journal.content
    return NodeStateDocument(
        summary=_summary(state),
        items=tuple(_claims(state)),
        gpu_notes=content.notes if content else (),
        orphaned_partitions=[str(orphan.partition.id) for orphan in (content.orphans if content else ())],
        not_repaired=left,
        findings=found,
    )


def _is_problem(finding: Finding) -> bool:
    return finding.status == "warn"

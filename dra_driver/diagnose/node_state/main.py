"""``dra-driver state``: show and check the driver's state on a node, and repair it on request."""

import argparse
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from dra_driver.diagnose.node_settings import add_flags, load_settings

if TYPE_CHECKING:
    from dra_driver.core.finding import Finding
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
    parser.add_argument("--output", choices=("text", "json"), default="text", help="format (default: text)")
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
        print(json.dumps(_wire(state, found, left), indent=2))
    else:
        print("\n".join(_text(state, found, left)))
    return 1 if left or any(_is_problem(finding) for finding in found) else 0


def _text(state: "NodeState", found: "tuple[Finding, ...]", left: tuple[str, ...]) -> Iterator[str]:
    from dra_driver.core.command_line.table import render

    for name, value in _summary(state).items():
        yield f"{name + ':':<14} {value}"
    rows = [
        (f"{each['namespace']}/{each['name']}", each["state"], ", ".join(each["devices"]), each["cdiFile"], each["uid"])
        for each in _claims(state)
    ]
    if rows:
        yield ""
        yield render(HEADINGS, [(*row[:3], "yes" if row[3] else "no", row[4]) for row in rows])
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


def _counted(found: "tuple[Finding, ...]") -> str:
    problems = sum(_is_problem(finding) for finding in found)
    notes = len(found) - problems
    return f"{problems} problem{'' if problems == 1 else 's'}, {notes} note{'' if notes == 1 else 's'}"


def _claims(state: "NodeState") -> Iterator[dict[str, Any]]:
    for entry in state.journal.content.entries if state.journal.content else ():
        yield {
            "uid": entry.ref.uid,
            "namespace": entry.ref.namespace,
            "name": entry.ref.name,
            "state": str(entry.state),
            "devices": [device.device for device in entry.devices],
            "cdiFile": entry.ref.uid in state.cdi.claims,
        }


def _wire(state: "NodeState", found: "tuple[Finding, ...]", left: tuple[str, ...]) -> dict[str, Any]:
    content = state.journal.content
    return {
        "summary": _summary(state),
        "claims": list(_claims(state)),
        "gpuNotes": [
            {"gpu": note.gpu, "key": note.key, "value": note.value} for note in (content.notes if content else ())
        ],
        "orphanedPartitions": [str(orphan.partition.id) for orphan in (content.orphans if content else ())],
        "notRepaired": list(left),
        "findings": [
            {
                "about": finding.object,
                "seen": finding.seen,
                "advice": finding.fix,
                "severity": "problem" if _is_problem(finding) else "remark",
            }
            for finding in found
        ],
    }


def _is_problem(finding: "Finding") -> bool:
    return finding.status == "warn"

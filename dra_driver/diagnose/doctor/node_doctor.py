"""The checks of a node, and the report of one run."""

import time
from typing import Final

from dra_driver.core.finding import Check, Finding, run_all
from dra_driver.diagnose.doctor import (
    node_judge_devices,
    node_judge_driver,
    node_judge_files,
    node_judge_kubelet,
    node_judge_runtime,
)
from dra_driver.diagnose.doctor.node_facts import LocalFacts, NodeReaders, read_node
from dra_driver.diagnose.doctor.node_view import HostView
from dra_driver.diagnose.doctor.report import DoctorReport

NODE_CHECKS: Final[tuple[Check[LocalFacts], ...]] = (
    *node_judge_kubelet.CHECKS,
    *node_judge_driver.CHECKS,
    *node_judge_devices.CHECKS,
    *node_judge_runtime.CHECKS,
    *node_judge_files.CHECKS,
)


def examine(
    node: str,
    view: HostView,
    *,
    pods: tuple[str, ...] = (),
    state: tuple[Finding, ...] = (),
    readers: NodeReaders | None = None,
) -> DoctorReport:
    """Read the node and judge it; see `node_facts.read_node`. Never raises an error of this project."""
    begin = time.monotonic()
    facts = read_node(node, view, pods=pods, state=state, readers=readers)
    return DoctorReport(
        target=f"node/{node}",
        findings=run_all(NODE_CHECKS, facts, f"node/{node}"),
        source="the node itself",
        took_s=time.monotonic() - begin,
    )

"""The cluster's node that this host is, and the driver's folders on it."""

import os
import sqlite3
from collections.abc import Set
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from dra_driver.node.process.sockets import is_served
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from tests.e2e.cluster import DRIVER

KUBELET_ROOT = Path(os.environ.get("E2E_KUBELET_ROOT", "/var/lib/kubelet"))
CDI_DIR = Path(os.environ.get("E2E_CDI_DIR", "/var/run/cdi"))
STATE_DIR = Path(os.environ.get("E2E_STATE_DIR", str(KUBELET_ROOT / "plugins" / DRIVER)))
_CLAIM_FILE = f"k8s.{DRIVER}-claim_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    cdi: Path
    state: Path

    def claims_with_files(self) -> set[str]:
        return {path.stem.removeprefix(_CLAIM_FILE) for path in self.cdi.glob(f"{_CLAIM_FILE}*.json")}

    def claims_in_journal(self) -> set[str]:
        database = self.state / "state.db"
        if not database.exists():
            return set()
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as journal:
            return {uid for (uid,) in journal.execute("SELECT uid FROM claim")}

    def left_of_others(self, known: Set[str]) -> str:
        """CDI files and journal rows of claims that are not among ``known``, "" without any."""
        files = [f"CDI file of claim {uid}" for uid in sorted(self.claims_with_files() - known)]
        rows = [f"journal row of claim {uid}" for uid in sorted(self.claims_in_journal() - known)]
        return ", ".join(files + rows)


def local_node(nodes: list[Obj]) -> str | None:
    """The name of the node that this host is: the one in E2E_NODE_NAME, or the one with this host's boot id."""
    if name := os.environ.get("E2E_NODE_NAME"):
        return name
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    here = [node["metadata"]["name"] for node in nodes if dig(node, "status", "nodeInfo", "bootID") == boot_id]
    # Several nodes in containers of one host share its boot id, but not its folders.
    return here[0] if len(here) == 1 and (KUBELET_ROOT / "plugins_registry").is_dir() else None


def driver_runs_here() -> bool:
    """Whether a node process answers on this host. Slices do not tell: they outlive it by half a minute."""
    return any(is_served(path) for path in (KUBELET_ROOT / "plugins_registry").glob(f"{DRIVER}*reg.sock"))


def folders(node: str | None) -> Folders | None:
    given = "E2E_CDI_DIR" in os.environ and "E2E_STATE_DIR" in os.environ
    return Folders(cdi=CDI_DIR, state=STATE_DIR) if given or node is not None else None

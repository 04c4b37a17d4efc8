"""Makes the table of XIDs in docs/health.md from dra_driver/node/health/xids.py; the text around it is by hand.

`make gen` writes the page, `make check` compares.
"""

from pathlib import Path

from dra_driver.node.health.xids import ROWS, XidRecovery, xid

PAGE = Path("docs/health.md")
BEGIN, END = "<!-- generated: XIDs -->", "<!-- end of generated text -->"
_NEEDS = {
    XidRecovery.NONE: "nothing",
    XidRecovery.RESTART_APP: "restart of the program",
    XidRecovery.GPU_RESET: "GPU reset",
    XidRecovery.NODE_REBOOT: "reboot",
    XidRecovery.CONTACT_SUPPORT: "reset or reboot; NVIDIA's support",
}


def generate(source: Path, target: Path) -> None:
    """Write the page below ``target``: that of ``source`` with a new table."""
    head, _, rest = (source / PAGE).read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    (target / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text(f"{head}{BEGIN}\n\n{table()}\n{END}{tail}")


def outputs(root: Path) -> list[Path]:
    """The page, if it exists below ``root``."""
    return [path for path in (root / PAGE,) if path.exists()]


def table() -> str:
    """All XIDs in Markdown."""
    lines = ["| XID | meaning | does | needs | driver reports | sources |", "|---|---|---|---|---|---|"]
    for number, meaning, _, since, sources in ROWS:
        known = xid(number)
        does = "**taints**" if known.taints else "counted"
        reports = f"since {since}" if since else ""
        lines.append(f"| {number} | {meaning} | {does} | {_NEEDS[known.recovery]} | {reports} | {', '.join(sources)} |")
    return "\n".join(lines) + "\n"

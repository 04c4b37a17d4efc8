"""Write what `kubectl dra explain` prints to a terminal as a picture: ``make pictures``. It runs in a terminal against
an embedded cluster."""

import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dra_driver.sim.cluster import Cluster
from tests.ui.scene import scene

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 118, 60
TIMEOUT_S = 60.0
COMMANDS = {"explain": ("explain", "no-match")}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, scene(ROOT, Path(folder)) as cluster:
        for name in COMMANDS:
            write(name, cluster)
    return 0


def write(name: str, cluster: Cluster) -> None:
    arguments = COMMANDS[name]
    command = (sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *arguments)
    shown = printed([*command, "--kubeconfig", str(cluster.kubeconfig)])
    picture = PICTURES / f"terminal-{name}.svg"
    picture.write_text(as_svg(f"kubectl dra {' '.join(arguments)}", shown), encoding="utf-8")
    sys.stdout.write(f"{picture.relative_to(ROOT)}: {len(shown.splitlines())} lines\n")


def printed(command: Sequence[str]) -> str:
    """What a command prints to a terminal, with its colours. Raises CalledProcessError."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its, env=environment) as child:
        os.close(its)
        chunks: list[bytes] = []
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:  # EIO: the other end is closed (pty(7))
            pass
        finally:
            os.close(ours)
        if child.wait(TIMEOUT_S) not in (0, 1):  # explain exits with 1 for a pod that waits
            raise subprocess.CalledProcessError(child.returncode, command, b"".join(chunks))
    return b"".join(chunks).decode("utf-8").replace("\r\n", "\n")


def as_svg(title: str, shown: str) -> str:
    """A picture of a terminal. It names no font of another host: a page that shows it loads nothing."""
    text = Text.from_ansi(shown)
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, color_system="truecolor")
    console.print(text)
    svg = console.export_svg(title=f"$ {title}", unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(main())

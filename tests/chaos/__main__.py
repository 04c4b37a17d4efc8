"""`make chaos`: run every fault of docs/internals/faults.md that this machine supports in two workers, then write the
page. Exit status 1, and no new page, when a test failed. Usage: python -m tests.chaos [pytest arguments]"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.stage import FOLDER

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "tests/chaos", "-m", "chaos", "-n", str(WORKERS), "--dist", "load"]
        status = subprocess.run(
            [*command, "-rs", "--timeout", "300", *sys.argv[1:]],
            cwd=ROOT,
            env={**os.environ, FOLDER: folder},
            check=False,
        ).returncode
        if status != 0:
            return 1
        if sys.argv[1:]:
            print(f"{len(list(Path(folder).iterdir()))} records; the page is written by a whole run only")
            return 0
        seconds = str(round(time.monotonic() - began))
        collect = [sys.executable, "scripts/faults_docs.py", "collect", folder, "chaos", seconds]
        return subprocess.run(collect, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

"""Set up the virtual environment that every `make` target uses.

Works with nothing but a Python >= 3.11 standard library: Debian splits `ensurepip` into a package of its own, so where
it is missing the pip wheel beside the lock file is run from its file (docs/decisions/0002-pip-wheel-in-the-tree.md).
Versions and hashes come from requirements/dev.txt; the indexes from the user's own pip configuration. Nothing outside
the folder given is written, and a failed run can simply be repeated.

usage: bootstrap.py FOLDER
"""

import hashlib
import importlib.util
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
PIP_WHEEL = REQUIREMENTS / "pip-26.3-py3-none-any.whl"
PIP_WHEEL_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    if sys.version_info < (3, 11):  # noqa: UP036 - this script is what an older interpreter meets first
        print(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: run `make PYTHON=python3.11 ...`",
            file=sys.stderr,
        )
        return 2
    folder = Path(argv[1])
    return install(create(folder))


def create(folder: Path) -> list[str]:
    """Create the environment (again) and return the command that runs pip in it."""
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    venv.EnvBuilder(with_pip=has_ensurepip, symlinks=True, clear=True).create(folder)
    python = str(folder / "bin" / "python")
    if has_ensurepip:
        return [python, "-m", "pip"]
    digest = hashlib.sha256(PIP_WHEEL.read_bytes()).hexdigest()
    if digest != PIP_WHEEL_SHA256:
        raise SystemExit(f"{PIP_WHEEL} has sha256 {digest}, expected {PIP_WHEEL_SHA256}: restore the file from git")
    return [python, f"{PIP_WHEEL}/pip"]


def install(pip: list[str]) -> int:
    """Install the locked dependencies, then the project itself in place; stops at the first failure."""
    common = ["install", "--quiet", "--disable-pip-version-check", "--no-input"]
    steps = [
        [*common, "--require-hashes", "--requirement", str(REQUIREMENTS / "dev.txt")],
        [*common, "--no-deps", "--no-build-isolation", "--no-index", "--editable", str(ROOT)],
    ]
    for step, what in zip(steps, ("downloading and installing packages", "installing this project"), strict=True):
        if run([*pip, *step], f"setting up .venv, the first time only: {what}") != 0:
            print("setting up the environment failed, see above; the same command can be repeated", file=sys.stderr)
            return 1
    return 0


def run(command: list[str], what: str) -> int:
    """Run the command and return its status; on a terminal with the seconds so far."""
    if not sys.stderr.isatty():
        return subprocess.run(command, check=False).returncode
    began = time.monotonic()
    with subprocess.Popen(command) as process:
        while True:
            print(f"\r\x1b[K{what} ... {time.monotonic() - began:.0f} s", end="", file=sys.stderr, flush=True)
            try:
                return process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
            finally:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))

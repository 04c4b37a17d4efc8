"""Remove the rooms that no process of the image imports, and compile the rest into a folder of their own
(PYTHONPYCACHEPREFIX).

Compiled files hold neither times nor hashes that are checked (PEP 552, unchecked), so that the same sources make the
same bytes and a start reads no source. Parts of the standard library that a server never imports are left out: they are
as large as the rest. Run by deploy/Dockerfile with the interpreter of the image.

usage: compile_image.py FOLDER node|ui
"""

import compileall
import py_compile
import re
import shutil
import sys
import sysconfig
from pathlib import Path

NEVER_IMPORTED = re.compile(
    r"/(site-packages/(pip|setuptools|_distutils_hack)|test|tests|idlelib|tkinter|turtledemo|lib2to3|ensurepip|pydoc_data"
    r"|distutils|turtle\.py|config-[^/]+)(/|$)"
)

LEFT_OUT = (
    "conformance",
    "config/schemas",
    "diagnose/smoke",
    "kubectl/drain",
    "kubectl/lint",
    "kubectl/migrate",
    "kubectl/usage",
    "kubectl/web",
    "sim",
)
"""Parts of ``dra_driver/`` for people's commands. tests/contract/deploy/test_image.py compares them with imports."""

LEFT_OUT_OF_UI = (
    *("conformance", "config/schemas", "controller", "diagnose/hardware", "diagnose/node_state", "diagnose/smoke"),
    *("hardware", "kubectl/drain", "kubectl/lint", "kubectl/migrate", "node", "sim"),
)


def main(argv: list[str]) -> int:
    contents = {"node": LEFT_OUT, "ui": LEFT_OUT_OF_UI}
    if len(argv) != 3 or argv[2] not in contents:
        print(__doc__, file=sys.stderr)
        return 2
    sys.pycache_prefix = argv[1]
    # The standard library's folder may hold the site-packages of the base image, which nothing here imports.
    paths = sysconfig.get_paths()
    for name in contents[argv[2]]:
        shutil.rmtree(Path(paths["purelib"], "dra_driver", name))
    return 0 if all([compile_folder(paths["stdlib"], site=False), compile_folder(paths["purelib"], site=True)]) else 1


def compile_folder(folder: str, *, site: bool) -> bool:
    """Compile a folder and those in it; ``site`` says that it is one for installed packages. True when all compiled."""
    skipped = NEVER_IMPORTED if site else re.compile(NEVER_IMPORTED.pattern + "|/(site|dist)-packages(/|$)")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    return bool(compileall.compile_dir(folder, quiet=1, rx=skipped, force=True, invalidation_mode=unchecked))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv))

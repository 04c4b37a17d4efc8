"""Threads that use a struct for the first time at the same time. Without the lock, msgspec ends the process."""

import subprocess
import sys

PROGRAM = """
import sys, threading, types
import msgspec
sys.setswitchinterval(1e-6)
from dra_driver.core.convert import convert
use = convert if sys.argv[1] == "guarded" else msgspec.convert
PARTS = "".join(
    f"class L{n}(msgspec.Struct):\\n    a: 'int | None' = None\\n    b: 'list[str]' = []\\n"
    f"    c: 'dict[str, int]' = {{}}\\n    d: 'L{max(n - 1, 0)} | None' = None\\n"
    for n in range(6)
)
for round in range(150):
    module = sys.modules[f"m{round}"] = types.ModuleType(f"m{round}")
    module.msgspec = msgspec
    exec(PARTS, vars(module))
    barrier = threading.Barrier(6)
    def run(kind):
        barrier.wait()
        use({"a": 1, "b": ["x"], "c": {"k": 1}, "d": None}, kind)
    threads = [threading.Thread(target=run, args=(getattr(module, f"L{5 - n % 3}"),)) for n in range(6)]
    [each.start() for each in threads]
    [each.join() for each in threads]
"""


def test_first_uses_at_the_same_time() -> None:
    """With ``unguarded`` the program ends by SIGSEGV within a few rounds (msgspec 0.22.0)."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM, "guarded"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")

"""Measure device selectors against their budgets: ``python -m tests.bench.cel_bench``. Prints the best of several
rounds. Exit status 1 if a typical selector takes over 2 microseconds to evaluate or over 1 ms to compile."""

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from dra_driver.scheduler.cel import DeviceView, compile_selector

DEVICE = {
    "attributes": {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "driverVersion": {"version": "580.65.6"},
        "index": {"int": 0},
    },
    "capacity": {"memory": {"value": "81559Mi"}},
}
A, M = 'device.attributes["gpu.nvidia.com"]', 'device.capacity["gpu.nvidia.com"].memory'
GUARD = 'device.driver == "gpu.nvidia.com" && '
TYPICAL = f'{GUARD}{A}.type == "gpu"'
OTHERS = {
    "memory of at least": f'{GUARD}{M}.compareTo(quantity("40Gi")) >= 0',
    "driver version": f'{GUARD}{A}.driverVersion.isGreaterThan(semver("550.0.0"))',
    "pattern": f'{GUARD}{A}.productName.matches("^.*H100.*$")',
    "one of": f'{GUARD}{A}.type in ["gpu", "mig"]',
    "optional attribute": f'{GUARD}{A}.?profile.orValue("") == ""',
    "cel.bind": f'cel.bind(a, {A}, a.type == "gpu" && a.index < 4)',
    "macro": f'{GUARD}["H100", "A100"].exists(name, {A}.productName.contains(name))',
    "metered": f"{GUARD}lists.range(10).sum() == 45",
}
_IMPORT = "import time; t = time.perf_counter(); import dra_driver.scheduler.cel; print(time.perf_counter() - t)"


def best_us(work: Callable[[], object], count: int, rounds: int = 5) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            work()
        times.append(time.perf_counter() - start)
    return min(times) / count * 1e6


def main() -> int:
    view = DeviceView("gpu.nvidia.com", DEVICE)
    typical = compile_selector(TYPICAL)
    evaluation_us = best_us(lambda: typical.evaluate(view), 50_000)
    compilation_us = best_us(lambda: compile_selector.__wrapped__(TYPICAL), 500)
    breached = evaluation_us > 2 or compilation_us > 1000
    print(f"typical selector, evaluate   {evaluation_us:8.2f} us   budget 2 us")
    print(f"typical selector, compile    {compilation_us:8.0f} us   budget 1000 us")
    for name, expression in OTHERS.items():
        program = compile_selector(expression)
        print(f"{name:28} {best_us(partial(program.evaluate, view), 5_000):8.2f} us")
    print(f"view of a device             {best_us(lambda: DeviceView('gpu.nvidia.com', DEVICE), 5_000):8.2f} us")
    command = [sys.executable, "-c", _IMPORT]
    imports = [float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5)]
    print(f"import                       {min(imports) * 1e3:8.1f} ms")
    return 1 if breached else 0


if __name__ == "__main__":
    sys.exit(main())

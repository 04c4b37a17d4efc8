"""Many node processes in one operating system process, each with folders, sockets, GPUs and watches of its own.

Driven by ``scale_bench.py`` through lines on standard input: ``start``, and ``await N`` until each node publishes what
a policy with the attribute ``rollout`` = N says. Each is answered by a line.
"""

import argparse
import gc
import logging
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dra_driver.config.settings import load_node_settings
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.telemetry import logs

if TYPE_CHECKING:
    from dra_driver.node.process.plugin import NodeProcess

STACK_BYTES = 512 * 1024
SWITCH_S = 0.1  # how often a waiting thread wakes; at 5 ms a thousand threads use up four cores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gpus", required=True)
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    threading.stack_size(STACK_BYTES)
    sys.setswitchinterval(SWITCH_S)
    logs.configure("text", "warning")
    from dra_driver.node.process.plugin import NodeProcess

    nodes = [NodeProcess(load_node_settings(settings(args, name), {})) for name in args.names]
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        if command == "start":
            start(nodes)
        while not all(is_right(node, int(value)) if value else is_published(node) for node in nodes):
            time.sleep(0.1)
        print(f"done {len(nodes)}", flush=True)
    return 0


def settings(args: argparse.Namespace, name: str) -> dict[str, str | None]:
    folder = args.folder / name
    for each in ("reg", "plugins", "cdi"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    return {
        "node_name": name,
        "simulate": args.gpus,
        "kubeconfig": args.kubeconfig,
        "kubelet_registrar_dir": str(folder / "reg"),
        "kubelet_plugins_dir": str(folder / "plugins"),
        "cdi_dir": str(folder / "cdi"),
        "http_addr": "",
    }


def start(nodes: Sequence["NodeProcess"]) -> None:
    for node in nodes:
        thread = threading.Thread(target=node.start)
        thread.start()
        thread.join()
    gc.collect()
    gc.freeze()


Part = TypeVar("Part")


def part(node: "NodeProcess", kind: type[Part]) -> Part:
    return next(found for each in node.components if isinstance(found := each.part, kind))


def is_published(node: "NodeProcess") -> bool:
    from dra_driver.node.slices import Publisher

    return part(node, Publisher).published


def is_right(node: "NodeProcess", rollout: int) -> bool:
    from dra_driver.hardware.gpu.inventory import Inventory
    from dra_driver.node.process.terms_resolver import TermsResolver

    if not is_published(node):
        return False
    terms = part(node, TermsResolver).current()
    return all(
        (found := terms.get(GpuUuid(gpu.uuid))) is not None and rollout in found.attributes.values()
        for gpu in part(node, Inventory).current().gpus
    )


if __name__ == "__main__":
    logging.raiseExceptions = False
    sys.exit(main())

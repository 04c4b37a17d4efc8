"""Run a process of the driver and print its threads' names, a JSON list for each line on stdin: running threads, and
once each those that have ended, as an HTTP answer takes a millisecond. Child of
tests/contract/node/process/test_threads.py."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.options import flags_of, load
from dra_driver.config.settings import load_node_settings, node_flags
from dra_driver.controller.process import ControllerProcess
from dra_driver.hardware.sharing.control import ControlProgram
from dra_driver.hardware.sharing.host import MpsHost
from dra_driver.hardware.sharing.memory import SharedMemory
from dra_driver.node.process.plugin import NodeProcess

started: set[str] = set()  # names of all threads that Python started; each thread adds its own


def main() -> None:
    threading.setprofile(note_start)
    command, *flags = sys.argv[1:]
    given = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    if command == "kubelet-plugin":
        fields: dict[str, Any] = {flag.field: given.get(flag.flag.removeprefix("--")) for flag in node_flags()}
        serve(NodeProcess(load_node_settings(fields, {})))
    elif command == "controller":
        fields = {flag.field: given.get(flag.flag.removeprefix("--")) for flag in flags_of(ControllerSettings)}
        serve(ControllerProcess(load(ControllerSettings, fields, {})))
    else:
        host_daemons(given)


def note_start(*_: object) -> None:
    sys.setprofile(None)
    started.add(threading.current_thread().name)


def serve(process: NodeProcess | ControllerProcess) -> None:
    process.start()
    while print_names():
        pass
    process.stop()


def host_daemons(given: dict[str, str]) -> None:
    root = Path(given["kubelet-plugins-dir"]) / given["driver-name"] / "mps"
    program = ControlProgram(root=given["driver-root"], private=False, users="one")
    MpsHost(root, program, SharedMemory(root.parent / "shm")).run(lambda: not print_names())


def print_names() -> bool:
    if not sys.stdin.readline():
        return False
    running = [thread.name for thread in threading.enumerate()]
    sys.stdout.write(json.dumps(sorted([*running, *started.difference(running)])) + "\n")
    sys.stdout.flush()
    return True


if __name__ == "__main__":
    main()

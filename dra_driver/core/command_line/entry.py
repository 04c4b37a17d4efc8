"""Start a program. Until its modules are imported, an interrupt ends the process without a traceback."""

import importlib
import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(module: str) -> int:
    main = importlib.import_module(module).main
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return int(main())


def dra_driver() -> int:
    return _run("dra_driver.core.command_line.main")


def kubectl_dra() -> int:
    return _run("dra_driver.kubectl.commands.kubectl")

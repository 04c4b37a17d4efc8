"""``dra-driver sim up --ui`` prints the address of a page, which ends with it."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest


def test_the_page_of_an_embedded_cluster_opens_and_ends_with_it() -> None:
    pytest.importorskip("jinja2", reason="jinja2 is in requirements/dev.txt and not installed: run make")
    command = [
        sys.executable,
        "-m",
        "dra_driver.core.command_line.main",
        "sim",
        "up",
        "--ui",
        "--node",
        "gpu-a=1xa100-sxm4-40gb",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sim:
        try:
            assert sim.stdout is not None
            told = next(line for line in sim.stdout if line.startswith("page "))
            address, log = told.split()[1], Path(told.split()[-1])
            assert log.is_file()
            with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310  the address is loopback
                assert answer.status == 200
                assert "HttpOnly" in answer.headers["set-cookie"]
        finally:
            sim.send_signal(signal.SIGTERM)
            sim.wait(60)
    port = int(re.findall(r":(\d+)/", address)[0])
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.1", port)) != 0

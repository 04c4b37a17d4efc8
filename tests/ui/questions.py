"""The questions of docs/ui.md, answered by the page and by the command line in the scene of the pictures with a
fault. Prints the table of the page: ``python -m tests.ui.questions``. Exit status 1 if one of the two lacks the
answer, or a command needs longer than `COMMAND_S`. Times include HTTP and the start of the command. The embedded API
server has no quotas, which both say."""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from tests.harness.visitors import Browser
from tests.ui.scene import scene

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = Path(sys.executable).parent
COMMAND_S = 5.0


class Question(Struct, frozen=True):
    """``answer`` is a pattern that page and command both contain; ``way`` is the way from the fleet."""

    text: str
    way: str
    path: str
    command: str
    answer: str


QUESTIONS = (
    Question(
        "Which team wastes most?", "Namespaces, 1 click", "/namespaces", "top namespaces -A", r"default\s[^a-z]*\d"
    ),
    Question(
        "Which GPU fails, and whom does it affect?", "the tile Faults, 1 click", "/faults", "doctor", "gpu-3.*lost"
    ),
    Question("Which GPUs are free?", "the tile Free, 1 click", "/?show=free", "devices", r"gpu-7\s"),
    Question("How many MIG claims fit now?", "Capacity, 1 click", "/capacity", "capacity", r"1g\.10gb\W+\d+"),
    Question("Who uses a GPU, and how much?", "node, GPU, 2 clicks", "/nodes/gpu-b/gpu-0", "usage -A", "share-large"),
    Question(
        "Whom does a drain evict?", "node, 1 click", "/nodes/gpu-b", "drain gpu-b --evict --dry-run", "share-large"
    ),
    Question(
        "Why does my pod wait?", "Waiting, pod, 2 clicks", "/pending/default/no-match", "explain pod no-match", "H900"
    ),
    Question("Would my job fit?", "What if, 1 click and a paste", "", "explain -f examples/job.yaml", "fits"),
    Question("Do I use the memory that I requested?", "Claims, 1 click", "/claims", "usage", r"one-gpu[\s\S]*GiB"),
    Question("How much quota is left?", "Namespaces, 1 click", "/namespaces", "quota", "(?i)not (served|support)"),
)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, scene(ROOT, Path(folder), usage=True) as cluster:
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        inject = [str(COMMANDS / "dra-driver"), "sim", "inject", "gpu-a", "gpu-3", "xid=79"]
        subprocess.run(inject, check=True, stdout=subprocess.DEVNULL)
        page = subprocess.Popen([COMMANDS / "kubectl-dra", "ui", "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            assert page.stdout is not None
            found = re.search(r"http://\S+", page.stdout.readline())
            assert found, "the page names no address"
            return _ask(found[0])
        finally:
            page.terminate()
            page.wait(30)


def _ask(address: str) -> int:
    parts = urlsplit(address)
    browser = Browser(f"{parts.scheme}://{parts.netloc}")
    browser.get(f"{parts.path}?{parts.query}")
    browser.home = parts.path.removesuffix("open")
    browser.pages()
    time.sleep(20)  # exporters and slow answers need some seconds
    problems: list[str] = []
    print("| question | page | time | command | time |\n|---|---|---|---|---|")
    for question in QUESTIONS:
        shown = "-"
        if question.path:
            shown, text = _page(browser, question.path)
            problems += [f"{question.path} lacks {question.answer}"] * (not re.search(question.answer, text))
        begun = time.monotonic()
        command = [str(COMMANDS / "kubectl-dra"), *question.command.split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        took = time.monotonic() - begun
        problems += [f"{question.command} lacks {question.answer}:\n{done.stdout}{done.stderr}"] * (
            not re.search(question.answer, done.stdout + done.stderr)
        )
        problems += [f"{question.command} took {took:.1f} s"] * (took > COMMAND_S)
        print(f"| {question.text} | {question.way} | {shown} | `kubectl dra {question.command}` | {took:.1f} s |")
    print("\n".join(problems))
    return 1 if problems else 0


def _page(browser: Browser, path: str) -> tuple[str, str]:
    """The median time of five requests, and the page's text."""
    times = []
    for _ in range(5):
        begun = time.monotonic()
        status, text = browser.get(path)
        times.append(time.monotonic() - begun)
        assert status == 200, (path, status)
    return f"{1000 * sorted(times)[2]:.0f} ms", re.sub(r"<[^>]+>", " ", text)


if __name__ == "__main__":
    sys.exit(main())

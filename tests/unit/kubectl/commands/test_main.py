"""Subcommands, exit statuses, wrong arguments, and the modules loaded for them."""

import argparse
import contextlib
import io
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver import __version__
from dra_driver.config.settings import node_flags
from dra_driver.core.command_line import main
from dra_driver.core.command_line.examples import EXAMPLES
from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.commands import complete, kubectl
from dra_driver.kubectl.commands.complete import FILES, NO_FILES, NO_SPACE_NO_FILES, AskedCluster, candidates
from dra_driver.kubectl.commands.source import Progress, line, targets_of
from tests.unit.kubectl.explain.clusters import cluster, pod


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"dra-driver {__version__} ")
    assert kubectl.main(["version"]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "usage: dra-driver"),
        (["kubelet-plugin", "--node", "n"], "usage: dra-driver"),  # an abbreviation, which a later flag would change
        (["version", "--loud"], "unrecognized arguments: --loud; see dra-driver version --help"),
    ],
)
def test_wrong_use_is_status_2(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_help_lists_every_command_once(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for run, known in ((kubectl.main, kubectl.SUBCOMMANDS), (main.main, main.SUBCOMMANDS)):
        assert run(arguments) == 0
        found = re.findall(r"^  (\S+)  +\S", capsys.readouterr().out, re.MULTILINE)
        assert sorted(found) == sorted(known)


def test_an_interrupt_during_imports_prints_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "argparse.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from dra_driver.core.command_line import entry; " + (
        "entry.kubectl_dra()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, "")


def test_invalid_setting_exits_with_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NODE_NAME", raising=False)
    assert main.main(["kubelet-plugin"]) == 2
    assert capsys.readouterr().err == "dra-driver: --node-name (NODE_NAME) is missing\n"


def test_help_names_every_setting_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["kubelet-plugin", "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for flag in node_flags():
        assert flag.flag in text
        assert f"[{flag.env}]" in text


def test_overview_imports_no_other_package() -> None:
    """Help must be fast, and the node process must stay small."""
    script = "import sys; from dra_driver.core.command_line import main\n"
    script += "try: main.main(['version'])\nexcept SystemExit: pass\n"
    script += "print(*[name for name in sys.modules if name.startswith('dra_driver.')])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=20).stdout
    loaded = {".".join(name.split(".")[1:3]) for name in out.split() if name.startswith("dra_driver.")}
    assert loaded == {"core", "core.command_line", "core.errors"}


def names(kind: str, cluster: AskedCluster) -> list[str]:
    if cluster.kubeconfig:
        return ["far"] if cluster == AskedCluster(kubeconfig="/other") else []
    known = {("pod", ""): ["train", "infer"], ("pod", "team-a"): ["theirs"], ("node", ""): ["gpu-a", "gpu-b"]}
    return {**known, ("namespace", ""): ["default", "team-a"]}.get((kind, cluster.namespace), [])


@pytest.mark.parametrize(
    ("words", "expected", "directive"),
    [
        (["ex"], ["explain"], NO_FILES),
        (["policy", ""], ["explain"], NO_FILES),
        (["explain", "po"], ["pod/"], NO_SPACE_NO_FILES),
        (["explain", "pod/t"], ["pod/train"], NO_FILES),
        (["explain", "-n", "team-a", "pod/"], ["pod/theirs"], NO_FILES),
        (["explain", "--namespace=team-a", "pod/"], ["pod/theirs"], NO_FILES),
        (["explain", "pod", "t"], ["train"], NO_FILES),
        (["explain", "-n", "team-a", "pod", ""], ["theirs"], NO_FILES),
        (["devices", "gpu-"], ["gpu-a", "gpu-b"], NO_FILES),
        (["explain", "--kubeconfig", "/other", "pod/"], ["pod/far"], NO_FILES),
        (["drain", "--kubeconfig=/other", ""], ["far"], NO_FILES),
        (["explain", "-n", "te"], ["team-a"], NO_FILES),
        (["explain", "--name"], ["--namespace"], NO_FILES),
        (["explain", "-o", "j"], ["json"], NO_FILES),
        (["explain", "--output=j"], ["--output=json"], NO_FILES),
        (["explain", "-f", ""], [], FILES),
        (["explain", "--node", ""], ["gpu-a", "gpu-b"], NO_FILES),
        (["drain", "gpu-"], ["gpu-a", "gpu-b"], NO_FILES),
        (["drain", "--evict", "gpu-b"], ["gpu-b"], NO_FILES),
        (["lint", "a.yaml", ""], [], FILES),
        (["classes", ""], ["list", "apply", "prune"], NO_FILES),
    ],
)
def test_candidates(words: list[str], expected: list[str], directive: int) -> None:
    found, what = candidates(words, names)
    assert ([name for name, _ in found], what) == (expected, directive)


@pytest.mark.parametrize("words", [["nope", ""], ["explain", "pod/"], ["policy", "nope", ""]])
def test_a_prompt_never_gets_an_error(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    assert complete.main(words) == 0
    assert capsys.readouterr() == (":4\n", "")


PROGRAMS = {"kubectl dra": (kubectl.ABOUT, kubectl.SUBCOMMANDS), "dra-driver": (main.ABOUT, main.SUBCOMMANDS)}
# Nothing to show: the name alone is the whole call.
PLAIN = {"kubectl dra version", "dra-driver version"}


def leaves(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield parser.prog, parser
    for each in below[0].values() if below else ():
        yield from leaves(each)


FOUND: dict[str, tuple[argparse.ArgumentParser, argparse.ArgumentParser]] = {}
for program, (about, subcommands) in PROGRAMS.items():
    whole, _ = main.parser_of(program, about, subcommands, subcommands)
    FOUND |= {name: (whole, parser) for name, parser in leaves(whole) if name not in PLAIN}


def examples(name: str, parser: argparse.ArgumentParser) -> list[list[str]]:
    """The words behind the program's name of each example; a remark stands behind three spaces or more."""
    text = parser.format_help()
    found = re.findall(r"^ {2,}(?:\$ )?((?:kubectl dra|dra-driver) .*)$", text, flags=re.M)
    program = next(each for each in PROGRAMS if name.startswith(each))
    lines = [re.split(r" {3,}| [|>] ", line)[0] for line in found if line.startswith(name)]
    return [shlex.split(line.removeprefix(program), comments=True) for line in lines]


def test_examples_use_existing_commands() -> None:
    assert EXAMPLES.keys() - FOUND.keys() == set()


@pytest.mark.parametrize("name", FOUND)
def test_help_has_examples_that_parse(name: str) -> None:
    top, parser = FOUND[name]
    found = examples(name, parser)
    assert found, f"`{name} --help` has no line that begins with two spaces and `{name}`"
    for words in found:
        with contextlib.suppress(SystemExit):
            top.parse_args(words)
            continue
        pytest.fail(f"the example does not parse: {words}")


class Terminal(io.StringIO):
    """Signal the first write."""

    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal = is_terminal
        self.written = threading.Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        done = super().write(text)
        self.written.set()
        return done


@pytest.mark.parametrize(("is_terminal", "after_s"), [(True, 60.0), (False, 0.0)])
def test_a_short_command_and_a_pipe_get_no_line(is_terminal: bool, after_s: float) -> None:
    stream = Terminal(is_terminal)
    with Progress("reading pods", stream=stream, after_s=after_s) as progress:
        progress.say("reading claims")
        assert not stream.written.wait(0.05)
    assert stream.getvalue() == ""


def test_an_error_takes_the_line_away() -> None:
    terminal = Terminal()

    def work() -> None:
        with Progress("reading pods", stream=terminal, after_s=0.0):
            assert terminal.written.wait(5)
            targets_of(["node/a/b"], "node")

    with pytest.raises(ConfigurationError):
        work()
    assert terminal.getvalue().startswith("\r\x1b[Kreading pods ... 0 s")
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_line_fits_the_terminal_and_moves_no_cursor() -> None:
    assert line("node \x1b[31m" + "a" * 100, 12.4, lambda: 40) == "node ?[31m" + "a" * 20 + " ... 12 s"
    assert len(line("a" * 100, 3.0, lambda: 20)) == 19


PROMETHEUS = "usage --prometheus http://x"
CASES = {
    "capacity --cluster-state STATE --node nope": "--node 'nope': none of the 2 nodes has this name",
    "capacity --cluster-state STATE --share lots": "--share: 'lots' is not a quantity",
    "capacity --cluster-state STATE --share=-1Gi": "expected an amount greater than zero",
    "capacity --cluster-state STATE --feature-gates X": "expected NAME=true",
    "doctor --snapshot STATE train": "expected node NAME, pod NAME or claim NAME",
    "doctor --snapshot STATE service/x": "expected node NAME, pod NAME or claim NAME",
    "doctor --snapshot STATE node/a/b": "expected node NAME",
    "doctor --snapshot STATE node/none": "node none does not exist",
    "drain gpu-a --force": "--force: only with --evict",
    **{
        f"{command} {text}": "expected NODE or NODE/GPU, got"
        for command in ("drain --evict", "undrain")
        for text in ("gpu-a/", "/gpu-3", "node/", "node/gpu-a/", "a/b/c", "gpu-a --gpu=")
    },
    "explain --cluster-state STATE train -f x.yaml": "expected names, or manifests with -f",
    "explain --cluster-state STATE train -A": "only without names",
    "explain --cluster-state STATE deployment/x": "no pod of deployment x in namespace default",
    "explain --cluster-state STATE deploymet/x": "did you mean deployment?",
    "explain --cluster-state STATE pod": "got no name",
    "claims --cluster-state STATE nope": "not found: nope",
    "claims --cluster-state STATE -w": "a file does not change",
    "claims -o json -w": "-w: expected a table",
    "top gpus": "expected claim, pod, namespace, node or device",
    "explain --cluster-state STATE pod/missing": "no pod missing in namespace default",
    "explain --cluster-state STATE claim/missing -n team": "no ResourceClaim missing in namespace team",
    "explain --cluster-state STATE train --node nowhere": "no node nowhere; known nodes: a, b",
    "explain --cluster-state STATE train --feature-gates X": "expected NAME=true or NAME=false",
    "explain --cluster-state STATE -f /nowhere.yaml": "cannot read /nowhere.yaml",
    "migrate": "no input",
    "migrate missing.yaml": "no such file or directory",
    "migrate - --gpu-memory lots": "--gpu-memory",
    "migrate - --gpu-memory 1": "expected 256Mi to 4Ti",
    "policy explain gpu-0": "expected NODE/GPU",
    "policy explain a/b/c": "expected NODE/GPU",
    "policy explain a/gpu-0 --gpus 1xl4-24gb": "need each other",
    "ui --port 65536": "--port 65536",
    "ui --cluster-state x.json --prometheus http://localhost:9090": "cannot be combined with --cluster-state",
    "ui --prometheus localhost:9090": "expected an address",
    "usage --by colour": "--by",
    "usage --window 1h": "--window",
    "usage --prometheus ftp://x": "--prometheus",
    "usage --prometheus http://user:secret@x": "--prometheus",
    f"{PROMETHEUS} --prometheus-token-file none": "--prometheus-token-file",
}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("devcies", "unknown command 'devcies' for 'kubectl dra'; did you mean 'devices'?"),
        ("claims -o jsn", "did you mean 'json'?"),
        ("claims --namspace x", "did you mean --namespace?"),
        ("claims -l a=(", "'a=(' is not a label requirement"),
        ("idle --idle-for soon", "'soon': expected a duration such as 30s, 10m or 1h, 1s to 366d"),
        ("doctor --timeout 0", "expected a duration"),
        ("doctor --timeout nan", "expected a duration"),
        ("drain gpu-a --timeout 8d", "0s to 7d"),
        (f"{PROMETHEUS} --window 1y", "5m to 366d"),
        (f"{PROMETHEUS} --window 1s", "5m to 366d"),
    ],
)
def test_mistyped_words_get_a_hint(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        kubectl.main(arguments.split())
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("arguments", CASES)
def test_wrong_arguments_are_named(arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(cluster(pods=[pod()]), state := tmp_path / "state.json")
    assert kubectl.main([str(state) if word == "STATE" else word for word in arguments.split()]) == 2
    assert CASES[arguments] in capsys.readouterr().err

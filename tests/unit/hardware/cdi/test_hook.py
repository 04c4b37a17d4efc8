"""When NVIDIA's hook is used, and how it is called; reading the version of NVIDIA's hook, whatever the program does."""

import os
import time
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.semver import Semver
from dra_driver.hardware.cdi.hook import (
    CdiHook,
    HookChoice,
    HookVersions,
    UnknownVersionError,
    base_hooks,
    choose_hook,
    find_hook,
    parse_version,
    print_version,
)
from dra_driver.hardware.driver_root.root import DriverRoot
from tests.fakes.driver_root import FakeDriverRoot
from tests.harness.raising import fails

HOOK, OPERATOR, CTK = "/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook", "/usr/bin/nvidia-ctk"


def host_view(path: Path) -> DriverRoot:
    return DriverRoot(root=str(path), host_root="/")


def test_the_first_hook_on_the_host_is_taken(tmp_path: Path) -> None:
    """Package, GPU operator, then the toolkit's main program."""
    root = FakeDriverRoot(tmp_path)
    assert find_hook(host_view(tmp_path)) is None
    for path in (CTK, OPERATOR, HOOK):
        root.put(path, b"", 0o755)
        assert find_hook(host_view(tmp_path)) == path


def test_a_hook_that_cannot_run_is_not_used(tmp_path: Path) -> None:
    root = FakeDriverRoot(tmp_path)
    root.put(HOOK, b"", 0o644)
    root.link(CTK, "/nowhere")
    (tmp_path / OPERATOR.lstrip("/")).mkdir(parents=True)
    assert find_hook(host_view(tmp_path)) is None


def test_a_driver_containers_root_tells_nothing_about_the_host(tmp_path: Path) -> None:
    """Its own copy of the hook is not where the runtime would look."""
    FakeDriverRoot(tmp_path).put(HOOK, b"", 0o755)
    root = DriverRoot(root=str(tmp_path), host_root="/run/nvidia/driver")
    assert find_hook(root) is None
    assert find_hook(root, "/opt/hook") == "/opt/hook", "the administrator knows the host"


def test_a_chosen_hook_must_be_on_the_host(tmp_path: Path) -> None:
    FakeDriverRoot(tmp_path).put("/opt/hook", b"", 0o755)
    assert find_hook(host_view(tmp_path), "/opt/hook") == "/opt/hook"
    with fails(ConfigurationError, "HookNotExecutable", match="/opt/other"):
        find_hook(host_view(tmp_path), "/opt/other")
    with fails(ConfigurationError, "HookPathRelative", match="nvidia-cdi-hook"):
        find_hook(host_view(tmp_path), "nvidia-cdi-hook")


COMPAT, UNMODIFIED = "enable-cuda-compat", "disable-device-node-modification"


def printing(line: str) -> HookVersions:
    return HookVersions(lambda root, path: line.encode())


@pytest.mark.parametrize(
    ("version", "commands"),
    [
        ("1.17.8", ["create-symlinks", COMPAT, "update-ldcache"]),
        ("1.17.9", ["create-symlinks", COMPAT, "update-ldcache"]),
        ("1.18.0-rc.6", ["create-symlinks", COMPAT, "update-ldcache"]),
        ("1.18.0", ["create-symlinks", COMPAT, "update-ldcache", UNMODIFIED]),
        ("1.20.0", ["create-symlinks", COMPAT, "update-ldcache", UNMODIFIED]),
        ("2.0.0", ["create-symlinks", COMPAT, "update-ldcache", UNMODIFIED]),
    ],
)
@pytest.mark.parametrize(("path", "name"), [(HOOK, "NVIDIA CDI Hook"), (CTK, "NVIDIA Container Toolkit CLI")])
def test_a_hook_gets_the_commands_of_its_version(
    tmp_path: Path, path: str, name: str, version: str, commands: list[str]
) -> None:
    """A program before 1.18.0 ends with an error at a command that it does not know, and no container starts."""
    FakeDriverRoot(tmp_path).put(path, b"", 0o755)
    choice = choose_hook(host_view(tmp_path), None, printing(f"{name} version {version}\ncommit: 0123abcd\n"))
    assert choice.hook == CdiHook(path=path, version=Semver.parse(version))
    assert choice.note is None
    hooks = base_hooks(choice.hook, [("a", "/b")], ["/usr/lib64"], "580.65.06")
    prefix = ("nvidia-ctk", "hook") if path == CTK else ("nvidia-cdi-hook",)
    assert [hook.args[: len(prefix) + 1] for hook in hooks] == [(*prefix, command) for command in commands]
    assert all(hook.env and hook.path == path for hook in hooks)
    assert hooks[1].args[-1] == "--host-driver-version=580.65.06"


@pytest.mark.parametrize("version", ["1.13.5", "1.17.4", "1.17.5", "1.17.7", "1.17.8-rc.1", "0.0.1"])
def test_a_hook_with_a_known_hole_is_not_used(tmp_path: Path, version: str) -> None:
    """CVE-2025-23267 and CVE-2025-23266 let an image write to the host; soname mode needs no hook."""
    FakeDriverRoot(tmp_path).put(HOOK, b"", 0o755)
    choice = choose_hook(host_view(tmp_path), None, printing(f"NVIDIA CDI Hook version {version}"))
    assert choice.hook is None
    assert choice.note is not None
    assert f"{HOOK} is version {version}, which has CVE-2025-23267" in choice.note
    assert "install the NVIDIA Container Toolkit 1.17.8 or newer" in choice.note


def test_a_chosen_hook_is_held_to_the_same_floor(tmp_path: Path) -> None:
    FakeDriverRoot(tmp_path).put("/opt/hook", b"", 0o755)
    assert choose_hook(host_view(tmp_path), "/opt/hook", printing("NVIDIA CDI Hook version 1.17.7")).hook is None
    assert choose_hook(host_view(tmp_path), "none", printing("NVIDIA CDI Hook version 1.18.0")) == HookChoice()


def test_a_hook_of_a_host_that_cannot_be_seen_is_not_used(tmp_path: Path) -> None:
    root = DriverRoot(root=str(tmp_path), host_root="/run/nvidia/driver")
    choice = choose_hook(root, "/opt/hook", printing("NVIDIA CDI Hook version 1.18.0"))
    assert choice.hook is None
    assert choice.note is not None
    assert "cannot see programs of the host" in choice.note


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        # As the programs of NVIDIA/nvidia-container-toolkit print it (d34b3046, and v1.17.0 in its issue 204's report).
        ("NVIDIA CDI Hook version 1.20.0\ncommit: d34b3046758cb1a5db606b2a39519c731bbf9f56\n", Semver(1, 20, 0)),
        (
            "NVIDIA Container Toolkit CLI version 1.17.0\ncommit: 5bc031544833253e3ab6a36daec376dc13a4f479\n",
            Semver(1, 17, 0),
        ),
        ("NVIDIA CDI Hook version v1.18.2", Semver(1, 18, 2)),
        ("NVIDIA CDI Hook version 1.18.0-rc.1\n", Semver(1, 18, 0, ("rc", "1"))),
        ("a warning\nNVIDIA CDI Hook version 1.17.8\r\n", Semver(1, 17, 8)),
    ],
)
def test_the_version_is_read_from_its_line(printed: str, version: Semver) -> None:
    assert parse_version(printed.encode()) == version


@pytest.mark.parametrize(
    "printed",
    [
        b"",
        b"NVIDIA CDI Hook version unknown\n",
        b"NVIDIA CDI Hook version 1.17\n",
        b"NVIDIA CDI Hook version 01.17.8\n",
        b"NVIDIA CDI Hook version 99999999999999999999999.0.0\n",
        b"NVIDIA CDI Hook version 1.17.8 or so\n",
        b"1.18.0\n",
        b"\xff\xfe\x00\x1b[31mversion 1.18.0",
        b"NVIDIA CDI Hook version " + b"1" * 5000,
        b"x" * 10_000_000,
    ],
)
def test_nonsense_is_an_unknown_version_in_printable_words(printed: bytes) -> None:
    """The sentence goes to logs, so it holds no control characters and stays short."""
    with pytest.raises(UnknownVersionError) as caught:
        parse_version(printed)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_program_is_asked_for_its_version(tmp_path: Path) -> None:
    path = program(tmp_path / "hook", 'echo noise >&2; [ "$1" = --version ] && echo "NVIDIA CDI Hook version 1.18.1"')
    assert HookVersions().read("/", path, path) == Semver(1, 18, 1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 3", "printed nothing and ended with status 3"),
        ("sleep 60", "did not end within"),
        ("trap '' TERM; echo NVIDIA; sleep 60 & wait", "did not end within"),
        ("while :; do echo nonsense nonsense nonsense; done", "did not end within"),
    ],
)
def test_a_program_that_misbehaves_takes_bounded_time(tmp_path: Path, body: str, said: str) -> None:
    path = program(tmp_path / "hook", body)
    before = time.monotonic()
    with pytest.raises(UnknownVersionError, match=said):
        HookVersions(lambda root, program: print_version(root, program, 0.3)).read("/", path, path)
    assert time.monotonic() - before < 5


def test_a_program_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "hook"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    with pytest.raises(UnknownVersionError, match="cannot be started: Exec format error"):
        HookVersions().read("/", str(broken), str(broken))
    with pytest.raises(UnknownVersionError, match="cannot be read: No such file"):
        HookVersions().read("/", "/missing", str(tmp_path / "missing"))


def test_below_another_root_the_program_runs_in_that_root(tmp_path: Path) -> None:
    program(tmp_path / "hook", "echo NVIDIA CDI Hook version 1.18.0")
    with pytest.raises(UnknownVersionError, match="its --version printed"):
        HookVersions().read(str(tmp_path), "/hook", str(tmp_path / "hook"))


def test_the_program_runs_again_only_after_its_file_changed(tmp_path: Path) -> None:
    """The base document is searched again after every change of the driver root; a failure is tried again each time."""
    ran: list[str] = []
    answers = [b"nonsense", b"NVIDIA CDI Hook version 1.17.7", b"NVIDIA CDI Hook version 1.18.0"]

    def run(root: str, path: str) -> bytes:
        ran.append(path)
        return answers[len(ran) - 1]

    file = tmp_path / "hook"
    file.write_bytes(b"")
    versions = HookVersions(run)
    with pytest.raises(UnknownVersionError):
        versions.read("/", "/hook", str(file))
    assert [versions.read("/", "/hook", str(file)) for _ in range(3)] == [Semver(1, 17, 7)] * 3
    os.utime(file, (1, 1))
    assert versions.read("/", "/hook", str(file)) == Semver(1, 18, 0)
    assert len(ran) == 3

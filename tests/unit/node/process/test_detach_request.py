"""What counts as a request to give the NVIDIA driver up."""

import os
from functools import partial
from pathlib import Path

import pytest

from dra_driver.core.model.drain import MAX_REASON, clean
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.detaching import (
    ANNOTATION,
    LABELS,
    MAX_FILE_BYTES,
    PAUSED,
    DetachFile,
    DetachRequest,
    find_request,
)
from tests.fakes.stand_in import present

CLIENT, DRA = LABELS
PATH = Path("/plugins/detach")


own_node = partial(OwnNode, name="node-a")


def find(node: OwnNode | None, file: str | None = None) -> DetachRequest:
    """A request that has to be found."""
    return present(find_request(node, file, PATH))


def test_without_node_and_file_nothing_is_asked() -> None:
    assert find_request(None, None, PATH) is None
    assert find_request(own_node(labels={CLIENT: "true", DRA: "false"}), None, PATH) is None


def test_an_annotation_asks_at_once_and_says_how_to_end_it() -> None:
    """The sentence becomes part of the event of every pod that waits."""
    found = find(own_node(annotations={ANNOTATION: "driver 580.105"}))
    assert str(found) == "annotation gpu.dra-driver.io/detach of node node-a: driver 580.105"
    assert found.ends == "remove the annotation: kubectl annotate node node-a gpu.dra-driver.io/detach-"
    assert (found.when_unused, found.taint_value) == (False, "requested")


@pytest.mark.parametrize(
    ("value", "asks"), [("", True), ("true", True), ("0", True), ("false", False), ("False", False)]
)
def test_values_of_the_annotation(value: str, asks: bool) -> None:
    """Its presence asks; `detach=false` can only mean the opposite."""
    assert (find_request(own_node(annotations={ANNOTATION: value}), None, PATH) is not None) is asks


def test_a_file_asks_also_without_an_api_server() -> None:
    found = find(None, "reset of gpu-3\n")
    assert (str(found), found.ends) == ("file /plugins/detach: reset of gpu-3", "remove the file")


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("value", [PAUSED, f"on_{PAUSED}"])
def test_labels_of_a_driver_upgrade_ask_to_wait_for_claims(label: str, value: str) -> None:
    """k8s-driver-manager evicts claim holders after it sets the first label; they need their unprepare."""
    found = find(own_node(labels={label: value}))
    assert (found.when_unused, found.taint_value) == (True, "driver-upgrade")
    assert label in str(found)


def test_a_person_who_asks_counts_before_a_label() -> None:
    """An explicit detach does not wait for claims."""
    assert not find(own_node(annotations={ANNOTATION: "now"}, labels={CLIENT: PAUSED})).when_unused
    assert not find(own_node(labels={CLIENT: PAUSED}), "now").when_unused


def test_reasons_are_one_short_printable_line() -> None:
    """They stand in logs, events and errors."""
    assert clean(" two\nlines\x1b[31m\0 ") == "two lines?[31m?"
    assert clean("") == clean(" \n") == "no reason given"
    assert len(clean("x" * 300_000)) == MAX_REASON


def test_a_file_is_read_up_to_its_limit_and_its_absence_is_seen(tmp_path: Path) -> None:
    file = DetachFile(tmp_path / "detach")
    assert file.read() is None
    file.path.write_bytes(b"\xff" + b"x" * 10_000)
    content = present(file.read())
    assert content.startswith("\N{REPLACEMENT CHARACTER}x")
    assert len(content) == MAX_FILE_BYTES
    file.path.unlink()
    assert file.read() is None


def test_what_cannot_be_read_asks_all_the_same(tmp_path: Path) -> None:
    """A folder, a link or a pipe of that name was made on purpose; none of them may hang the thread."""
    file = DetachFile(tmp_path / "detach")
    file.path.mkdir()
    assert file.read() == "it is no regular file"
    file.path.rmdir()
    file.path.symlink_to("/etc/hostname")
    assert "it cannot be read" in str(file.read())
    file.path.unlink()
    os.mkfifo(file.path)
    assert file.read() == "it is no regular file"


def test_an_error_that_says_nothing_keeps_the_last_answer(tmp_path: Path) -> None:
    """A disk that fails for a moment neither detaches a node nor ends a detach."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    file = DetachFile(folder / "detach")
    file.path.write_text("upgrade")
    assert file.read() == "upgrade"
    file.path.unlink()
    folder.rmdir()
    folder.write_text("a file in the folder's place: ENOTDIR")
    assert file.read() == "upgrade"

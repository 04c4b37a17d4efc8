"""Processes that compute on the node's GPUs are found by their open files, also out of a container."""

from pathlib import Path

from dra_driver.diagnose.hardware.survey import MAX_FILES, open_links, openers


def process(root: Path, pid: int, name: str, *targets: str) -> None:
    folder = root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    for number, target in enumerate(targets):
        (folder / f"fd/{number}").symlink_to(target)


def test_a_program_that_computes_has_uvm_and_its_gpus_open(tmp_path: Path) -> None:
    """A monitor has GPUs open, and no UVM."""
    process(tmp_path, 2, "kthreadd")
    process(tmp_path, 70, "dcgm-exporter", "/dev/nvidia0", "/dev/nvidiactl")
    process(tmp_path, 71, "train", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidia1", "/dev/nvidia3", "/dev/null")
    process(tmp_path, 72, "moved", "/run/nvidia/driver/dev/nvidia-uvm (deleted)", "/run/nvidia/driver/dev/nvidia12")
    found = openers((str(tmp_path),))
    assert found["complete"] is True
    assert sorted((one["pid"], one["name"], one["minors"]) for one in found["processes"]) == [
        (71, "train", [1, 3]),
        (72, "moved", [12]),
    ]


def test_a_containers_own_processes_are_not_all_of_the_node(tmp_path: Path) -> None:
    """Its process 2 is no thread of the kernel."""
    process(tmp_path, 2, "python3")
    assert openers((str(tmp_path),)) == {"complete": False, "processes": []}


def test_the_first_root_with_the_nodes_processes_is_read(tmp_path: Path) -> None:
    """The host's, mounted into a pod; else this process' own."""
    process(tmp_path / "own", 2, "kthreadd")
    process(tmp_path / "own", 9, "train", "/dev/nvidia-uvm", "/dev/nvidia0")
    (tmp_path / "host").mkdir()
    found = openers((str(tmp_path / "host"), str(tmp_path / "own")))
    assert [one["pid"] for one in found["processes"]] == [9]


def test_a_process_that_cannot_be_read_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    """It may compute."""
    process(tmp_path, 2, "kthreadd")
    process(tmp_path, 9, "train", "/dev/nvidia-uvm", "/dev/nvidia0")

    def links(folder: Path) -> list[str]:
        if folder.name == "9":
            raise PermissionError
        return open_links(folder)

    assert openers((str(tmp_path),), links=links) == {"complete": False, "processes": []}


def test_a_process_with_more_files_than_are_read_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    """The GPU may be the last one."""
    process(tmp_path, 2, "kthreadd")
    assert openers((str(tmp_path),), links=lambda _: ["/dev/null"] * (MAX_FILES - 1))["complete"] is True
    assert openers((str(tmp_path),), links=lambda _: ["/dev/null"] * MAX_FILES)["complete"] is False

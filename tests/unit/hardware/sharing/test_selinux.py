"""Whether SELinux is on, as the kernel's files say."""

from pathlib import Path

import pytest

from dra_driver.hardware.sharing.memory import LABEL, container_label


@pytest.mark.parametrize(
    ("own", "label"),
    [
        ("system_u:system_r:spc_t:s0\0", LABEL),
        ("system_u:system_r:container_t:s0:c1,c2\0", LABEL),
        ("cri-containerd.apparmor.d (enforce)\n", None),
        ("unconfined\n", None),
        ("kernel\0", None),
        ("", None),
        (None, None),
    ],
)
def test_the_label_of_container_files_is_used_where_a_policy_is_loaded(
    tmp_path: Path, own: str | None, label: str | None
) -> None:
    """Another security module writes its own words into the same file; without a policy no label is valid."""
    if own is not None:
        (tmp_path / "current").write_text(own)
    assert container_label(tmp_path, tmp_path / "current") == label


def test_without_selinux_in_the_kernel_there_is_no_label(tmp_path: Path) -> None:
    """The folder of its file system is missing then."""
    (tmp_path / "current").write_text("system_u:system_r:spc_t:s0")
    assert container_label(tmp_path / "selinux", tmp_path / "current") is None

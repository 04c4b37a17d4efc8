"""The simulated kubelet's checkpoint."""

from pathlib import Path

import pytest

from dra_driver.core.errors import RetryableError, StorageError
from dra_driver.sim.node.kubelet_state import DeviceResponse, KubeletState, NodeClaim

DEVICE = DeviceResponse(driver="d", request_names=("r",), pool="p", device="gpu-0", cdi_ids=("k=a", "k=b"))


def claim(uid: str = "u1", name: str = "c") -> NodeClaim:
    return NodeClaim(namespace="n", name=name, uid=uid, drivers=("d",))


def test_a_restart_remembers_users_and_devices_but_not_that_a_claim_is_prepared(tmp_path: Path) -> None:
    """Running containers keep their devices, and for a pod that starts the driver is called again."""
    state = KubeletState(tmp_path / "s")
    state.add_user(claim(), "pod-1")
    state.set_prepared("u1", "d", (DEVICE,))
    assert state.is_prepared("u1")
    again = KubeletState(tmp_path / "s")
    assert not again.is_prepared("u1")
    assert again.devices("u1") == (DEVICE,)
    assert again.pods() == {"pod-1"}


def test_a_claim_is_unprepared_with_its_last_user(tmp_path: Path) -> None:
    state = KubeletState(tmp_path / "s")
    state.add_user(claim(), "pod-1")
    state.add_user(claim(), "pod-2")
    assert state.drop_user("pod-1") == []
    assert state.drop_user("pod-2") == [claim()]
    assert state.drop_user("pod-2") == [claim()], "until the driver has answered the claim stays in use"
    state.forget(["u1"])
    assert state.pods() == frozenset()


def test_a_claim_of_the_same_name_waits_for_the_old_one(tmp_path: Path) -> None:
    state = KubeletState(tmp_path / "s")
    state.add_user(claim("old"), "pod-1")
    with pytest.raises(RetryableError, match="different UID old is not unprepared yet"):
        state.add_user(claim("new"), "pod-2")


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    """A kubelet that lost its state would leak devices."""
    (tmp_path / "s").write_text("{")
    with pytest.raises(StorageError, match="cannot read its state"):
        KubeletState(tmp_path / "s")

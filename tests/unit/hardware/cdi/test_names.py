"""Names of kinds, devices and files, and everything that must never become one."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import ClaimError, ConfigurationError
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.spec import CdiDevice, CdiSpec, ContainerEdits, spec_problems

NAMES = CdiNames("gpu.nvidia.com")
UID = "0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e"
SHARE = "9d6a2c1e-11aa-4b5f-8c0d-d1e2f3a4b5c6"

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
UIDS = st.uuids().map(str)


def test_names_follow_the_convention_of_dra_drivers() -> None:
    assert NAMES.common_id == "k8s.gpu.nvidia.com/device=common"
    assert NAMES.base_file_name == "k8s.gpu.nvidia.com-device_base.json"
    assert NAMES.claim_file_name(UID) == f"k8s.gpu.nvidia.com-claim_{UID}.json"
    assert NAMES.claim_id(UID, "gpu-0") == f"k8s.gpu.nvidia.com/claim={UID}-gpu-0"
    assert NAMES.claim_id(UID, "gpu-0", SHARE) == f"k8s.gpu.nvidia.com/claim={UID}-gpu-0-{SHARE}"


@pytest.mark.parametrize(
    "uid",
    ["", "../../x", "..", ".", "a/b", "a\\b", "a.b", "a b", "a\n", "a\0b", "-a", "a-", "é", "٣", "a" * 65, "a=b", "*"],
)
def test_a_hostile_uid_never_becomes_a_path_or_a_name(uid: str) -> None:
    """The UID comes over a socket; with it as a path another driver's files could be written or removed."""
    for use in (NAMES.claim_file_name, lambda u: NAMES.claim_id(u, "gpu-0"), lambda u: NAMES.claim_id(UID, "gpu-0", u)):
        with pytest.raises(ClaimError, match="not a Kubernetes UID"):
            use(uid)


@pytest.mark.parametrize("device", ["", "GPU", "gpu_0", "gpu/0", "gpu=0", "../gpu", "gpu-", "a" * 64, "gpu.0", "gpu\n"])
def test_a_device_that_is_no_dns_label_is_refused(device: str) -> None:
    """Replacing characters instead would let two devices share a name."""
    with pytest.raises(ClaimError, match="DNS label"):
        NAMES.claim_device(UID, device)


@pytest.mark.parametrize(
    "driver", ["", "GPU.nvidia.com", "gpu..com", ".gpu", "gpu/x", "a" * 64, "gpu_x", "gpu-", "g\n"]
)
def test_a_driver_name_that_kubernetes_would_refuse_is_refused_first(driver: str) -> None:
    with pytest.raises(ConfigurationError, match="driver name"):
        CdiNames(driver)


@given(driver=st.lists(LABELS, min_size=1, max_size=2).map(".".join), uid=UIDS, device=LABELS, share=st.none() | UIDS)
def test_every_accepted_name_is_valid_cdi(driver: str, uid: str, device: str, share: str | None) -> None:
    names = CdiNames(driver)
    name = names.claim_device(uid, device, share)
    document = CdiSpec(
        kind=names.claim_kind, devices=(CdiDevice(name=name, container_edits=ContainerEdits(env=("A=1",))),)
    )
    assert not list(spec_problems(document))
    assert document.to_wire()["cdiVersion"] in ("0.3.0", "0.5.0")
    assert names.claim_id(uid, device, share) == f"{document.kind}={name}"
    assert json.loads(json.dumps(name)) == name


@given(driver=st.lists(LABELS, min_size=1, max_size=2).map(".".join), uid=UIDS)
def test_a_claims_uid_can_be_read_from_its_file_name(driver: str, uid: str) -> None:
    """That is how orphans are found after a crash."""
    names = CdiNames(driver)
    assert names.uid_of(names.claim_file_name(uid)) == uid
    assert names.uid_of(names.base_file_name) is None


@given(text=st.text(max_size=80))
def test_any_text_is_refused_or_stays_in_the_folder(text: str) -> None:
    """No UID, however made, yields a name with a separator or a dot file."""
    try:
        name = NAMES.claim_file_name(text)
    except ClaimError:
        return
    assert re.fullmatch(r"k8s\.gpu\.nvidia\.com-claim_[A-Za-z0-9-]+\.json", name)


def test_only_temporary_files_of_this_driver_are_recognised() -> None:
    """Every writer built on the reference library leaves spec.*.tmp in the same folder."""
    assert NAMES.is_temporary(f"{NAMES.temporary_prefix}a1b2c3d4.tmp")
    for name in ("spec.12345678.tmp", ".k8s.gpu_a1b2c3d4.tmp", ".k8s.gpu.nvidia.com_a1b2c3d4.json", "a1b2c3d4.tmp"):
        assert not NAMES.is_temporary(name)
    assert not CdiNames("gpu").is_temporary(f"{CdiNames('gpu-x').temporary_prefix}a1b2c3d4.tmp")

"""The file of --claim-template."""

from pathlib import Path

import pytest

from dra_driver.conformance.cluster import read_template
from dra_driver.core.errors import ConfigurationError

SPEC = "devices: {requests: [{name: a, exactly: {deviceClassName: c}}]}"
CLAIM = f"kind: ResourceClaim\nspec: {{{SPEC}}}\n"
TEMPLATE = f"kind: ResourceClaimTemplate\nspec: {{spec: {{{SPEC}}}}}\n"
CLASS = "kind: DeviceClass\nmetadata: {name: c}\nspec: {}\n"


@pytest.mark.parametrize("text", [CLAIM, TEMPLATE, f"{CLASS}---\n{TEMPLATE}---\n"])
def test_a_claim_or_template_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    template = read_template(path)
    assert template.spec["devices"]["requests"][0]["name"] == "a"
    assert len(template.classes) == text.count("DeviceClass\n")


@pytest.mark.parametrize(
    "text", ["", "kind: Pod\n", f"{CLAIM}---\n{CLAIM}", "kind: ResourceClaim\nspec: 1\n", "a: [", "- 1\n", CLASS]
)
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"--claim-template .*t\.yaml"):
        read_template(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_template(tmp_path / "absent")

"""docs/health.md says what the code does."""

import re
from pathlib import Path

import pytest
import yaml

from dra_driver.config.policy import policy_of, policy_problems
from dra_driver.core.model.health import HealthCause
from dra_driver.node.health.fault import CALM_S
from dra_driver.node.health.xids import KNOWN
from dra_driver.node.process.health_conditions import KEYS

PAGE = (Path(__file__).parents[4] / "docs" / "health.md").read_text()


@pytest.mark.parametrize("cause", list(HealthCause))
def test_each_cause_is_documented_with_its_key_and_calm_time(cause: HealthCause) -> None:
    (row,) = re.findall(rf"^\| `{cause}` \|.*$", PAGE, re.MULTILINE)
    calm = "none" if CALM_S[cause] == 0 else f"{CALM_S[cause]:g} s"
    assert row.endswith(f"| {calm} |")
    assert f"`{KEYS[cause]}" in row


def test_each_xid_is_documented_and_those_that_taint_stand_out() -> None:
    """`make gen` writes the table; a row that is edited by hand is a difference."""
    rows = dict(re.findall(r"^\| (\d+) \| .*? \| (\*\*taints\*\*|counted) \|", PAGE, re.MULTILINE))
    assert {int(number): does == "**taints**" for number, does in rows.items()} == {
        number: known.taints for number, known in KNOWN.items()
    }


def test_the_policy_that_is_shown_can_be_applied() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    written = yaml.safe_load(text)
    assert policy_problems(written) == []
    assert policy_of(written).health.evicting_causes == {HealthCause.LOST}

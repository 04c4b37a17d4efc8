"""Randomly damaged manifests give a report, never a traceback."""

import random
from pathlib import Path

import pytest

from dra_driver.kubectl.lint import lint
from dra_driver.kubectl.lint.finding import as_github, as_json, as_sarif, as_text
from dra_driver.kubectl.lint.manifest import ManifestSource
from dra_driver.kubectl.lint.scope import known_from_catalog
from tests.unit.kubectl.lint.helpers import GUARD, C, D, device_class, pod, selecting, template

ROOT = Path(__file__).parents[4]
SEED = 20261
PIECES = """
null [] {} '' - : ? & * ! | > @ % --- ... <<: *a &a {{ }} true 0 -1 1e999 0x 1Gi .nan ~ " ' #
exactly firstAvailable requests deviceClassName selectors cel expression count allocationMode All items
kind: List resource.k8s.io/v1beta1 resource.k8s.io/v1 device.driver && || ! == in has( quantity(' .?
semver(' [? cel.bind( .all(x, lists.range(99999) 9999999999999999999999
"""
WORDS = [*PIECES.split(), "é", "\u2028", "\x85", "\x00", "\ud800", "\ufeff", "\t", "\r", "\r\n"]


def seeds() -> list[str]:
    texts = [path.read_text() for path in sorted((ROOT / "examples").glob("*.yaml"))]
    texts += [(ROOT / "deploy/base/deviceclasses.yaml").read_text(), device_class(f"{GUARD} && {D}.type == 'mig'")]
    texts.append(selecting(f"cel.bind(a, {D}, a.?x.orValue('') == '') || {C}.memory.compareTo(quantity('5Gi')) > 0"))
    parameters = "{apiVersion: resource.nvidia.com/v1beta1, kind: GpuConfig, sharing: {strategy: MPS, mpsConfig: {}}}"
    config = f"{{opaque: {{driver: gpu.nvidia.com, parameters: {parameters}}}}}"
    rest = f"constraints: [{{matchAttribute: a/b}}]\nconfig: [{config}]"
    requests = "- {name: a, firstAvailable: [{name: b, deviceClassName: mig.nvidia.com, allocationMode: All}]}"
    texts.append(template(requests, rest=rest) + "---\n" + pod("[{name: gpu, resourceClaimTemplateName: t}]"))
    return texts


def mutated(text: str, chance: random.Random, others: list[str]) -> str:
    """Removes, repeats, inserts or replaces some lines, words and characters."""
    for _ in range(chance.randint(1, 4)):
        lines = text.split("\n")
        at = chance.randrange(len(lines))
        place = chance.randrange(len(text) + 1)
        end = min(len(text), place + chance.randint(1, 30))
        match chance.randrange(8):
            case 0:
                del lines[at]
                text = "\n".join(lines)
            case 1:
                lines.insert(chance.randrange(len(lines) + 1), lines[at])
                text = "\n".join(lines)
            case 2:
                text = text[:place] + chance.choice(WORDS) + text[place:]
            case 3:
                text = text[:place] + text[end:]
            case 4:
                text = text[:place] + chance.choice(WORDS) + text[end:]
            case 5:
                lines[at] = " " * chance.randint(0, 6) + lines[at].lstrip(" ")
                text = "\n".join(lines)
            case 6:
                head, colon, _ = lines[at].partition(":")
                lines[at] = f"{head}{colon} {chance.choice(WORDS)}"
                text = "\n".join(lines)
            case _:
                other = chance.choice(others)
                text = text[:place] + other[chance.randrange(len(other)) :]
    return text


def check(text: str) -> int:
    """Returns the number of findings, after checking their positions and every output format."""
    report = lint([ManifestSource(name="m.yaml", text=text)], known_from_catalog())
    lines = text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + text.count("\u2029") + 2
    for finding in report.findings:
        assert 0 <= finding.line <= lines
        assert finding.column >= 0
        assert finding.caret >= 0
        assert finding.message
    for shown in (as_text(report), as_json(report), as_github(report), as_sarif(report, "0")):
        shown.encode("utf-8")
    return len(report.findings)


@pytest.mark.parametrize("count", [100, pytest.param(5_000, marks=pytest.mark.slow)])
def test_damaged_manifests_never_end_in_a_traceback(count: int) -> None:
    """Most of the damage is found, and every output format shows it."""
    texts, chance = seeds(), random.Random(SEED)  # noqa: S311  not for secrets
    found = sum(check(mutated(chance.choice(texts), chance, texts)) > 0 for _ in range(count))
    assert found > count / 2

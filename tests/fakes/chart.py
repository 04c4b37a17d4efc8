"""deploy/chart as objects, rendered with Helm's own code. Tests are skipped where helm-python-sdk has no wheel."""

import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

Obj = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
PRESETS = CHART / "presets"


@cache
def renderer() -> ModuleType:
    """The module scripts/render_chart.py."""
    spec = importlib.util.spec_from_file_location("render_chart", ROOT / "scripts" / "render_chart.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.helm_python is None:
        pytest.skip("helm-python-sdk is not installed")
    return module


def texts(values: Mapping[str, Any] | None = None, namespace: str = "dra-driver") -> dict[str, str]:
    """Manifests by the name of their template."""
    rendered: dict[str, str] = renderer().render(CHART, values or {}, namespace=namespace)
    return rendered


def objects(values: Mapping[str, Any] | None = None, namespace: str = "dra-driver") -> list[Obj]:
    """All objects that the chart makes of these values."""
    return [obj for text in texts(values, namespace).values() for obj in yaml.safe_load_all(text)]


def refusal(values: Mapping[str, Any]) -> str:
    """What Helm says about values that the chart refuses; empty where it takes them."""
    try:
        texts(values)
    except renderer().WrongValuesError as error:
        return str(error)
    return ""

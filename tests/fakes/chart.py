"""deploy/chart as objects, rendered with Helm's own code. Tests are skipped where helm-python-sdk has no wheel."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.fakes.scripts import script

Obj = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
PRESETS = CHART / "presets"


@cache
def renderer() -> ModuleType:
    module = script("render_chart")
    if module.helm_python is None:
        pytest.skip("helm-python-sdk is not installed")
    return module


def texts(values: Mapping[str, Any] | None = None, namespace: str = "dra-driver") -> dict[str, str]:
    rendered: dict[str, str] = renderer().render(CHART, values or {}, namespace=namespace)
    return rendered


def objects(values: Mapping[str, Any] | None = None, namespace: str = "dra-driver") -> list[Obj]:
    made: list[Obj] = json.loads(_objects(json.dumps(values or {}), namespace))
    return made


@cache
def _objects(values: str, namespace: str) -> str:
    loader = renderer().LOADER
    found = texts(json.loads(values), namespace).values()
    return json.dumps([obj for text in found for obj in yaml.load_all(text, loader) if obj is not None])


def notes(values: Mapping[str, Any] | None = None) -> str:
    with renderer().helm_python.Chart.load(CHART) as loaded:
        rendered: dict[str, str] = loaded.render(dict(values or {}), name="dra-driver", namespace="dra-driver")
    return rendered["dra-driver/templates/NOTES.txt"]


def refusal(values: Mapping[str, Any]) -> str:
    """What Helm says about values that the chart refuses; empty where it takes them."""
    try:
        texts(values)
    except renderer().WrongValuesError as error:
        return str(error)
    return ""


def preset(*names: str) -> Obj:
    """The values of presets, as `helm --values` merges them; later ones win."""
    values: Obj = renderer().merged([PRESETS / f"{name}.yaml" for name in names])
    return values


def base() -> list[Obj]:
    folder = ROOT / "deploy" / "base"
    names = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    return [obj for name in names for obj in yaml.safe_load_all((folder / name).read_text())]


def found(objs: list[Obj], kind: str, name: str) -> Obj:
    (obj,) = [obj for obj in objs if (obj["kind"], obj["metadata"]["name"]) == (kind, name)]
    return obj


def pod_spec(objs: list[Obj], kind: str, name: str) -> Obj:
    spec: Obj = found(objs, kind, name)["spec"]["template"]["spec"]
    return spec


def environment(spec: Obj) -> dict[str, str]:
    (container,) = spec["containers"]
    return {item["name"]: item["value"] for item in container["env"] if "value" in item}


def mounts(spec: Obj) -> dict[str, tuple[str, str]]:
    (container,) = spec["containers"]
    hosts = {item["name"]: item["hostPath"]["path"] for item in spec["volumes"] if "hostPath" in item}
    inside = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
    return {name: (inside[name], path) for name, path in hosts.items()}


def granted(objs: list[Obj], name: str) -> set[tuple[str, str]]:
    """Verb and resource of each right of the roles with this name."""
    roles = [each for each in objs if each["kind"] in {"Role", "ClusterRole"} and each["metadata"]["name"] == name]
    rules = [rule for each in roles for rule in each["rules"]]
    return {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}

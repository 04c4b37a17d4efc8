"""Malformed objects get an explanation or a ConfigurationError, never another exception."""

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.document import to_wire
from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import load
from dra_driver.kubectl.explain import explain, explain_pods
from dra_driver.kubectl.explain.manifests import pods_in
from dra_driver.kubectl.explain.report import render
from dra_driver.kubectl.explain.subject import subject_of, subject_of_claim

Obj = dict[str, Any]
SEED = 20261121
MUTANTS = 400
STRANGE: list[Any] = [
    None, True, 0, -1, 2**70, 1.5, "", "x", "9" * 400, "80Gi", "1.2.3", "\x00\x1b[31m", "a/b/c", [], {}, [{}], [None],
    {"x": {}}, ["x"] * 3, {"": ""}, "All", "ExactCount", 33, "NoSchedule", "device", "true || 1", "no such key",
]  # fmt: skip


EVERYTHING: list[Obj] = list(yaml.safe_load_all(Path(__file__).with_name("everything.yaml").read_text()))


def objects() -> list[Obj]:
    return copy.deepcopy(EVERYTHING)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def alike(value: Any) -> list[Any]:
    return [item for item in STRANGE if type(item) is type(value)] or STRANGE


def mutated(source: random.Random, found: list[Any]) -> list[Any]:
    """One to three values changed, removed or duplicated."""
    for _ in range(source.randint(1, 3)):
        path = source.choice(list(places(found)))
        parent: Any = found
        for step in path[:-1]:
            parent = parent[step]
        how = source.random()
        if how < 0.2:
            del parent[path[-1]]
        elif how < 0.3 and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[path[-1]]))
        else:
            parent[path[-1]] = copy.deepcopy(source.choice(alike(parent[path[-1]]) if how < 0.8 else STRANGE))
    return found


def explain_all(state: ClusterState, documents: list[Obj]) -> int:
    """Explains every pod and claim, live and as a manifest; returns the number of explanations."""
    reports = [explain(state, subject_of(state, item)) for item in state.pods]
    reports += [explain(state, subject_of_claim(item)) for item in state.claims]
    reports += explain_pods(state, pods_in(documents, "default", "x"))
    for report in reports:
        assert report.verdict.sentence
        assert render(report)
        to_wire(report)
    return len(reports)


def test_unmutated_objects_are_explained(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"kind": "List", "items": objects()}))
    assert explain_all(load(file), objects()) == 8


@pytest.mark.parametrize("part", range(4))
def test_mutants_get_an_explanation_or_an_error(tmp_path: Path, part: int) -> None:
    """At least 30 percent of the mutants are plausible enough to be explained."""
    source = random.Random(SEED + part)  # noqa: S311  repeatable, not secret
    answered = refused = 0
    for _ in range(MUTANTS // 4):
        documents = mutated(source, objects())
        file = tmp_path / "x.json"
        try:
            file.write_text(json.dumps({"kind": "List", "items": documents}))
            answered += bool(explain_all(load(file), documents))
        except ConfigurationError:
            refused += 1
    assert answered + refused == MUTANTS // 4
    assert answered > MUTANTS // 4 * 0.3

"""The check on generated code notices what it is there for."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def gen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen", ROOT / "scripts" / "gen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_edited_missing_and_left_over_files_are_named(gen: ModuleType, tmp_path: Path) -> None:
    fresh, tree = tmp_path / "fresh", tmp_path / "tree"
    for root, files in ((fresh, {"a_pb2.py": "1", "b_pb2.py": "1"}), (tree, {"a_pb2.py": "2", "c_pb2.pyi": "1"})):
        folder = root / gen.GENERATED / "v1"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    assert gen.differences(fresh, tree) == [
        "dra_driver/core/_pb/v1/a_pb2.py: differs",
        "dra_driver/core/_pb/v1/b_pb2.py: missing",
        "dra_driver/core/_pb/v1/c_pb2.pyi: nothing makes it any more",
    ]


def test_what_is_checked_in_is_what_the_protos_say(gen: ModuleType, tmp_path: Path) -> None:
    gen.generate(tmp_path)
    assert gen.differences(tmp_path, ROOT) == []

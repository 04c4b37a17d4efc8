"""The check on generated code notices what it is there for."""

from pathlib import Path

from tests.fakes.scripts import script

gen = script("gen")

ROOT = Path(__file__).parents[2]


def test_edited_missing_and_left_over_files_are_named(tmp_path: Path) -> None:
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


def test_what_is_checked_in_is_what_the_protos_say(tmp_path: Path) -> None:
    gen.generate(tmp_path)
    assert gen.differences(tmp_path, ROOT) == []

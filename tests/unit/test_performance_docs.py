"""The performance page says what the figures say."""

import json
from pathlib import Path
from xml.etree import ElementTree

from tests.fakes.scripts import script
from tests.harness.figures import Report

docs = script("performance_docs")

ROOT = Path(__file__).parents[2]


def test_a_figure_over_its_budget_is_not_called_held() -> None:
    found = json.loads((ROOT / docs.DATA).read_text())
    for kind, value in (("ours", 7.0), ("go", 10.0)):
        for figures in found[kind]:
            figures["none"]["prepare_p50"] = value
    text = docs.page(found, {})
    assert "| prepare, median, no claim held | **7.00** (7.00 7.00 7.00) | **10.00**" in text
    assert "| 0.700 | 0.6: **not held** |" in text


def test_a_figure_of_this_driver_alone_has_its_budget_and_the_load(tmp_path: Path) -> None:
    report = Report()
    report.line("idle CPU, 128 claims", 0.234, "%", 0.2, "over 60 s")
    report.line("memory, RSS", 57.0, "MiB", 60.0)
    report.save(tmp_path / "alone.json", "idle_bench")
    alone = json.loads((tmp_path / "alone.json").read_text())
    alone["idle_bench"] |= {"load": 7.5, "nice": -10}
    text = docs.page(json.loads((ROOT / docs.DATA).read_text()), alone)
    assert "| idle CPU, 128 claims | 0.23 % | 0.2: **not held** | over 60 s |" in text
    assert "| memory, RSS | 57.00 MiB | 60: held |  |" in text
    assert "Load average at the start 7.5, niceness -10." in text


def test_figures_of_another_bench_stay(tmp_path: Path) -> None:
    for bench in ("node", "idle_bench"):
        Report().save(tmp_path / "alone.json", bench)
    assert set(json.loads((tmp_path / "alone.json").read_text())) == {"node", "idle_bench"}


def test_the_page_names_no_path_of_a_machine() -> None:
    text = docs.page(json.loads((ROOT / docs.DATA).read_text()), json.loads((ROOT / docs.ALONE).read_text()))
    assert not [path for path in ("/home/", "/tmp/", "/root/", "/usr/") if path in text]


def test_plots_are_well_formed() -> None:
    drawn = docs.plots(json.loads((ROOT / docs.DATA).read_text()))
    assert set(drawn) == {"prepare.svg", "memory.svg", "explain.svg"}
    for text in drawn.values():
        assert ElementTree.fromstring(text).tag.endswith("svg")  # noqa: S314 - made by this project
        assert "nan" not in text

"""Values are compared with those that Kubernetes' own reader gave."""

import random

import pytest

from dra_driver.core.yaml_text import MAX_DEPTH, dump, load, load_all

DEEP = 60_000
BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(8)
)

# What sigs.k8s.io/yaml 1.6 of Kubernetes 1.36 makes of `v: TEXT`, as recorded from its YAMLToJSON.
KUBERNETES = {
    "1:59:59": "1:59:59", "190:20:30.15": "190:20:30.15", "2026-01-01": "2026-01-01", "2026-13-45": "2026-13-45",
    "2026-02-30T25:00:00Z": "2026-02-30T25:00:00Z", "0o17": 15, "017": 15, "089": 89, "0o8": "0o8", "1_000": 1000,
    "_": "_", "yes": True, "y": True, "n": False, "Off": False, "yES": "yES", "~": None, "0x_": "0x_", "0b1_0": 2,
    '!!python/object/apply:os.system ["true"]': ["true"], "!!python/name:os.system x": "x", "!foo bar": "bar",
    '!!binary "aGk="': "hi", '!!binary "/w=="': "\ufffd", "!!set {a, b}": {"a": None, "b": None}, "!!str 12": "12",
    "! 12": "12", '!!int "12"': 12, "!!float 3": 3, '!!timestamp "2026-01-01"': "2026-01-01", '!!bool "yes"': True,
    "=": "=", "<<": "<<", "{2026-01-01: 1}": {"2026-01-01": 1}, "{yes: 1, 0o17: 2, 1.5: 3, .5: 4}":
    {"true": 1, "15": 2, "1.5": 3, "0.5": 4}, "0xfffffffffffffffff": "0xfffffffffffffffff", "+1": 1, "-017": -15,
    "18446744073709551615": 2**64 - 1, "99999999999999999999": 1e20, "685.230_15e+03": 685230.15, ".": ".", "5.": 5,
    "1e3": 1000, "1e999": "1e999", "-0": 0, "1__0": 10, "_1": "_1", "1.0": 1, "{a: 1, <<: {a: 2, b: 3}}":
    {"a": 2, "b": 3}, "{<<: [{a: 1}, {a: 2, b: 1}]}": {"a": 1, "b": 1}, '"1e3"': "1e3",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), KUBERNETES.items())
def test_values_are_those_of_kubernetes(text: str, value: object) -> None:
    found = load(f"v: {text}\n")
    assert found == {"v": value}
    assert isinstance(found, dict)
    assert type(found["v"]) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((f"a: 1\nb: {text}", "line 2: ") for text in (
            ".inf", "-.INF", ".nan", '!!binary "###"', '!!int "abc"', '!!float "abc"', '!!bool "abc"',
            '!!timestamp "abc"', '!!int ""', '!!int "_"', "!!int 12.5", '!!null "x"', '!!float ":"',
            "{<<: 3}", "{[a]: 1}", "{null: 1}", "*c",
        )),
        ("a: &a [*a]", "contains itself"),
        (BOMB, "stand for more than 1000000 values"),
        *((text, "nested more than 100 levels deep") for text in (
            "[" * DEEP, "{a: " * DEEP, "- " * DEEP, "? " * DEEP, "a: 1\n---\nb:\n  " + "[" * DEEP)),
        ("a: [1, 2", "line [12]: "),
        ("a: \x01", "not YAML: "),
    ],
)  # fmt: skip
def test_refused_text_is_an_error_with_its_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        list(load_all(text))


def test_long_flat_text_is_read() -> None:
    assert load("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    assert len(list(load_all("---\n[[a], {b: [c]}]\n" * MAX_DEPTH))) == MAX_DEPTH
    assert load("v: " + "9" * 5000) == {"v": "9" * 5000}


def test_written_text_is_read_as_it_was() -> None:
    """Also `y`, `1e3` and `0o17`, which PyYAML itself would not quote."""
    seeded = random.Random(1)  # noqa: S311 - repeatable
    texts = ["".join(seeded.choices("0123_oxyne+-.:eE ~", k=seeded.randint(0, 5))) for _ in range(500)]
    value = {"texts": [*texts, *KUBERNETES, "y", "1e3", "0o17", ".inf"], "number": 3, "none": None}
    assert load(dump(value)) == value

"""`dra_driver.core.lean_dataclasses`: one suite against its decorator and the standard library's."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from dra_driver.core import lean_dataclasses
from dra_driver.hardware.cdi.spec import Mount


@pytest.fixture(params=[dataclasses.dataclass, lean_dataclasses.dataclass], ids=["standard", "lean"])
def dataclass(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def point(dataclass: Any) -> Any:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Point:
        x: int
        y: int = 0
        tags: dict[str, str] = dataclasses.field(default_factory=dict)
        note: str = dataclasses.field(default="", compare=False, repr=False)

    return Point


def test_fields_are_given_by_name_and_have_their_defaults(point: Any) -> None:
    """A missing, an unknown or a positional argument is an error, as for any function."""
    made = point(x=1)
    assert (made.x, made.y, made.tags, made.note) == (1, 0, {}, "")
    assert made.tags is not point(x=1).tags, "a factory makes a value for each instance"
    for wrong in ({}, {"x": 1, "z": 2}):
        with pytest.raises(TypeError, match="__init__"):
            point(**wrong)
    with pytest.raises(TypeError, match="positional"):
        point(1)


def test_frozen_instance_cannot_change(point: Any) -> None:
    """Values are passed between threads."""
    made = point(x=1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        made.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del made.x
    assert made.x == 1
    assert not hasattr(made, "__dict__")


def test_equality_and_hash_follow_the_compared_fields(dataclass: Any, point: Any) -> None:
    """Also with one field or none, and never between classes."""
    assert point(x=1) == point(x=1, note="not compared")
    assert point(x=1) != point(x=2)
    assert point(x=1) != (1, 0, {})

    @dataclass(frozen=True, slots=True)
    class One:
        a: str

    @dataclass(frozen=True, slots=True)
    class Empty:
        pass

    assert len({One("a"), One("a"), One("b"), Empty(), Empty()}) == 3
    assert One("a") != Empty()  # type: ignore[comparison-overlap]
    with pytest.raises(TypeError, match="unhashable"):
        hash(point(x=1))  # because of its dict


def test_class_that_can_change_has_no_hash_and_one_without_eq_compares_by_identity(dataclass: Any) -> None:
    """Both rules of the standard library prevent lost entries of dicts."""

    @dataclass(slots=True)
    class Changing:
        a: int = 0

    @dataclass(slots=True, eq=False)
    class Identity:
        a: int = 0

    made = Changing()
    made.a = 5
    assert made == Changing(5)
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)
    assert Identity() != Identity()
    assert len({Identity(), Identity()}) == 2


def test_order_is_that_of_the_fields(dataclass: Any) -> None:
    """And not defined between different classes."""

    @dataclass(frozen=True, order=True)
    class Made:
        major: int
        minor: int = 0

    Version: Any = Made  # noqa: N806 - the type checker does not know the decorator
    low, same, high = (Version(*given) for given in ((1, 2), (1, 2), (2,)))
    assert (low < high, low <= same, high > low, low >= same, low > high) == (True, True, True, True, False)
    with pytest.raises(TypeError, match="not supported"):
        _ = low < (1, 2)


def test_own_methods_stay_and_post_init_runs(dataclass: Any) -> None:
    """``__post_init__`` may set fields that ``__init__`` does not take."""

    @dataclass(frozen=True)
    class Named:  # noqa: PLW1641 - the test is about its __eq__
        name: str
        length: int = dataclasses.field(init=False)
        seen: list[str] = dataclasses.field(init=False, default_factory=list)
        kind: str = dataclasses.field(init=False, default="plain")

        def __post_init__(self) -> None:
            object.__setattr__(self, "length", len(self.name))

        def __eq__(self, other: object) -> bool:
            return True

        def __repr__(self) -> str:
            return "own"

    made = Named("abc")
    assert (made.length, made.seen, made.kind, repr(made), made == 1) == (3, [], "plain", "own", True)


def test_subclass_has_the_fields_of_both(dataclass: Any) -> None:
    """The first instance of either class makes no difference to the other."""

    @dataclass(frozen=True, kw_only=True)
    class Base:
        a: int

    @dataclass(frozen=True, kw_only=True)
    class Derived(Base):
        b: int = 2

    class Plain(Base):
        pass

    assert repr(Plain(a=1)).endswith("Plain(a=1)")
    assert repr(Derived(a=1)).endswith("Derived(a=1, b=2)")
    assert Base(a=1) != Derived(a=1)


def test_functions_of_the_standard_library_take_it(point: Any) -> None:
    """`replace`, `fields` and `asdict` are used on values of either kind."""
    made = point(x=1, note="n")
    assert dataclasses.replace(made, y=3) == point(x=1, y=3)
    assert dataclasses.replace(made, y=3).note == "n"
    assert dataclasses.asdict(made) == {"x": 1, "y": 0, "tags": {}, "note": "n"}
    assert [field.name for field in dataclasses.fields(made)] == ["x", "y", "tags", "note"]
    assert dataclasses.is_dataclass(made)
    assert repr(made).endswith("Point(x=1, y=0, tags={})")


def test_frozen_values_can_be_copied_and_pickled() -> None:
    """Their attributes cannot be set one by one, which is what pickle does otherwise."""
    mount = Mount(host_path="/a", container_path="/b")
    assert copy.deepcopy(mount) == mount
    assert pickle.loads(pickle.dumps(mount)) == mount  # noqa: S301 - made above

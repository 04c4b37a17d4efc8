"""Types of expressions at compile time, and when one is assignable to another (cel-go checker/types.go,
common/types/types.go). ``any``, the type of attributes, unifies with everything, as ``dyn`` does, but is a different
type where two types must be the same."""

from functools import lru_cache
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

_DYNAMIC: Final = frozenset({"dyn", "any"})
_NULLABLE: Final = frozenset({"opaque", "struct", "any", "duration", "timestamp"})


class Type(Struct, frozen=True, eq=False):
    """One type term. ``kind`` is the group (``struct`` for all objects), ``name`` the type in the group."""

    kind: str
    name: str
    parameters: "tuple[Type, ...]" = ()
    nullable: bool = False
    generic: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "generic", self.kind == "param" or any(p.generic for p in self.parameters))

    def __str__(self) -> str:
        name = f"wrapper({self.name})" if self.nullable else self.name
        return f"{name}({', '.join(map(str, self.parameters))})" if self.parameters else name

    def same(self, other: "Type", names: bool = True) -> bool:
        """Equal terms; with ``names`` False all type parameters count as equal."""
        if self is other:
            return True
        if self.kind != other.kind or len(self.parameters) != len(other.parameters):
            return False
        if (names or self.kind != "param") and self.name != other.name:
            return False
        return all(a.same(b, names) for a, b in zip(self.parameters, other.parameters, strict=True))


DYN, ANY, ERROR, NULL = Type("dyn", "dyn"), Type("any", "any"), Type("error", "!error!"), Type("null", "null")
BOOL, BYTES, DOUBLE, INT = Type("bool", "bool"), Type("bytes", "bytes"), Type("double", "double"), Type("int", "int")
STRING, UINT, DURATION = Type("string", "string"), Type("uint", "uint"), Type("duration", "duration")
TIMESTAMP, TYPE = Type("timestamp", "timestamp"), Type("type", "type")
QUANTITY, SEMVER = Type("struct", "kubernetes.Quantity"), Type("struct", "kubernetes.Semver")
IP, CIDR = Type("opaque", "net.IP"), Type("opaque", "net.CIDR")
DEVICE = Type("struct", "kubernetes.DRADevice")

_NAMED: Final = {
    **{t.name: t for t in (DYN, ANY, BOOL, BYTES, DOUBLE, INT, STRING, UINT, DURATION, TIMESTAMP, NULL)},
    "Quantity": QUANTITY,
    "Semver": SEMVER,
    "IP": IP,
    "CIDR": CIDR,
    "URL": Type("struct", "kubernetes.URL"),
    "Format": Type("struct", "kubernetes.NamedFormat"),
}


def list_of(element: Type) -> Type:
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("opaque", "optional_type", (value,))


def type_of(instance: Type) -> Type:
    return Type("type", "type", (instance,))


def parse_type(text: str) -> Type:
    """The type written as ``text`` in the signature table; single capitals are type parameters."""
    name, bracket, rest = text.partition("(")
    if bracket:
        parts = _split(rest[:-1])
        terms = [parse_type(part) for part in parts]
        if name == "map":
            return map_of(terms[0], terms[1])
        return {"list": list_of, "opt": optional_of, "type": type_of}[name](terms[0])
    if text in _NAMED:
        return _NAMED[text]
    if text.startswith("authz."):
        return Type("struct", "kubernetes.authorization." + text.removeprefix("authz."))
    assert len(text) == 1, text  # noqa: S101  a mistake in the signature table
    return Type("param", text)


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def type_parameters(term: Type) -> frozenset[str]:
    if term.kind == "param":
        return frozenset((term.name,))
    return frozenset().union(*(type_parameters(p) for p in term.parameters))


@lru_cache(maxsize=4096)
def fresh_variable(number: int) -> Type:
    return Type("param", f"_var{number}")


def is_dynamic(term: Type) -> bool:
    return term.kind in _DYNAMIC


def optional_value(term: Type) -> Type | None:
    """The type of an optional's value; None for other types."""
    return term.parameters[0] if term.kind == "opaque" and term.name == "optional_type" else None


class Unifier:
    """The bindings of type variables in one compilation. A failed attempt changes no binding."""

    def __init__(self) -> None:
        self._bound: dict[str, Type] = {}
        self._count = 0

    def variable(self) -> Type:
        self._count += 1
        return fresh_variable(self._count)

    def assignable(self, given: tuple[Type, ...], wanted: tuple[Type, ...]) -> bool:
        """Return whether each given type is assignable to the wanted one. Binds type variables as needed."""
        if len(given) != len(wanted):
            return False
        before = self._bound
        if any(t.generic for t in (*given, *wanted)):
            self._bound = dict(before)
        if all(map(self._assignable, given, wanted)):
            return True
        self._bound = before
        return False

    def resolved(self, term: Type, to_dyn: bool = False) -> Type:
        """The term with bound variables replaced, with ``to_dyn`` free ones by dyn."""
        if not term.generic:
            return term
        if term.kind == "param":
            bound = self._bound.get(term.name)
            if bound is not None:
                return self.resolved(bound, to_dyn)
            return DYN if to_dyn else term
        return Type(term.kind, term.name, tuple(self.resolved(p, to_dyn) for p in term.parameters))

    def _assignable(self, one: Type, two: Type) -> bool:
        if two.kind == "param":
            valid, bound = self._substitutable(one, two)
            if valid or bound:
                return valid
        if one.kind == "param":
            return self._substitutable(two, one)[0]
        if one.kind in _DYNAMIC or two.kind in _DYNAMIC or one.kind == "error" or two.kind == "error":
            return True
        if one.kind == "null" or two.kind == "null":
            other = two if one.kind == "null" else one
            return other.kind in _NULLABLE or other.nullable or other.kind == "null"
        if one.kind == "type":
            return two.kind == "type"
        if one.kind in {"opaque", "list", "map"}:
            same = one.kind == two.kind and one.name == two.name and len(one.parameters) == len(two.parameters)
            return same and all(map(self._assignable, one.parameters, two.parameters))
        return one.same(two)

    def _substitutable(self, one: Type, variable: Type) -> tuple[bool, bool]:
        """Return whether ``variable`` can be ``one``, and whether it was bound before."""
        if one.kind == "param" and one.name == variable.name:
            return True, True
        bound = self._bound.get(variable.name)
        if bound is not None:
            if one.kind == bound.kind and one.same(bound):
                return True, True
            if self._assignable(one, bound):
                wider = most_general(one, bound)
                if self._free_of(variable, wider):
                    self._bound[variable.name] = wider
                return True, True
            return False, True
        if self._free_of(variable, one):
            self._bound[variable.name] = one
            return True, False
        return False, False

    def _free_of(self, variable: Type, term: Type) -> bool:
        if variable.same(term):
            return False
        if term.kind == "param":
            bound = self._bound.get(term.name)
            return bound is None or self._free_of(variable, bound)
        return all(self._free_of(variable, p) for p in term.parameters)


def most_general(one: Type, two: Type) -> Type:
    return one if _no_more_specific(one, two) else two


def _no_more_specific(one: Type, two: Type) -> bool:
    if one.kind in _DYNAMIC or one.kind == "param":
        return True
    if two.kind in _DYNAMIC or two.kind == "param" or one.kind != two.kind:
        return False
    if one.kind in {"opaque", "list", "map"}:
        if one.name != two.name or len(one.parameters) != len(two.parameters):
            return False
        return all(map(_no_more_specific, one.parameters, two.parameters))
    return one.kind == "type" or one.same(two)

"""The type checker: resolves names, functions and types; its errors state line and column. Annotates nodes with
``type``, ``variable`` and ``overloads``.

Follows cel-go's checker/checker.go with the options of Kubernetes (homogeneous list and map literals, comparison of
numbers of different types), then cel/validator.go and ext/formatting.go (constant durations, timestamps, patterns,
homogeneous literals and format strings).
"""

from collections.abc import Collection, Mapping
from typing import Final

from dra_driver.scheduler.cel import syntax
from dra_driver.scheduler.cel import types as t
from dra_driver.scheduler.cel.libraries.convert import to_duration, to_timestamp
from dra_driver.scheduler.cel.libraries.format import parse_format
from dra_driver.scheduler.cel.libraries.strings import pattern
from dra_driver.scheduler.cel.operators import Function
from dra_driver.scheduler.cel.parser import qualified_name
from dra_driver.scheduler.cel.signatures import FUNCTION_SINCE, Overload, functions
from dra_driver.scheduler.cel.types import Type
from dra_driver.scheduler.cel.values import EvalError, UInt
from dra_driver.scheduler.cel.wellknown import MESSAGE_TYPES, MESSAGES, TYPE_NAMES

_LITERAL_TYPES: Final[dict[type, Type]] = {
    bool: t.BOOL,
    bytes: t.BYTES,
    float: t.DOUBLE,
    int: t.INT,
    str: t.STRING,
    UInt: t.UINT,
    type(None): t.NULL,
}
FIELDS: Final = {
    "driver": t.STRING,
    "allowMultipleAllocations": t.BOOL,
    "attributes": t.map_of(t.STRING, t.map_of(t.STRING, t.ANY)),
    "capacity": t.map_of(t.STRING, t.map_of(t.STRING, t.QUANTITY)),
}
"""Fields of the variable ``device``."""


SELECTOR_VARIABLES: Final[Mapping[str, syntax.Variable]] = {"device": syntax.Variable("device", t.DEVICE)}


class Checker:
    """Checks one tree. Not reused."""

    def __init__(
        self,
        source: syntax.SourceText,
        variables: Mapping[str, syntax.Variable] = SELECTOR_VARIABLES,
        lacks: Collection[str] = (),
    ) -> None:
        """``lacks`` are functions of `versions.FUNCTION_SINCE` that the expression must not call."""
        self._source = source
        self._unifier = t.Unifier()
        self._scopes: list[dict[str, syntax.Variable]] = [dict(variables)]
        self._functions = functions()
        self._lacks = lacks
        self._checked: list[syntax.Expr] = []

    def run(self, root: syntax.Expr) -> None:
        self._check(root)
        for node in self._checked:
            node.type = self._unifier.resolved(node.type, to_dyn=True)

    def _check(self, node: syntax.Expr) -> Type:
        term: Type = getattr(self, "_" + type(node).__name__.lower())(node)
        node.type = term
        self._checked.append(node)
        return term

    def _literal(self, node: syntax.Literal) -> Type:
        syntax.resolve_number(self._source, node)
        return _LITERAL_TYPES[type(node.value)]

    # --- names

    def _lookup(self, name: str) -> syntax.Variable | None:
        name = name.removeprefix(".")
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        if name in TYPE_NAMES:
            term = TYPE_NAMES[name]
            return syntax.Variable(name, t.type_of(term), name)
        return None

    def _ident(self, node: syntax.Ident) -> Type:
        found = node.variable = self._lookup(node.name)
        if found is None:
            known = [name for scope in self._scopes for name in scope if name[0].isalpha()]
            is_field = node.name in FIELDS and "device" in self._scopes[0]
            hint = f", did you mean 'device.{node.name}'?" if is_field else _near(node.name, known)
            raise self._source.error(node.offset, f"undeclared name {node.name!r}{hint}")
        return found.type

    def _select(self, node: syntax.Select) -> Type:
        name = None if node.test else qualified_name(node)
        node.variable = self._lookup(name) if name is not None else None
        if node.variable is not None:
            return node.variable.type
        term = self._field(node, node.operand, node.field, optional=False)
        return t.BOOL if node.test else self._unifier.resolved(term)

    def _field(self, node: syntax.Expr, operand: syntax.Expr, field: str, optional: bool) -> Type:
        outer = self._unifier.resolved(self._check(operand))
        inner = t.optional_value(outer)
        target = inner if inner is not None else outer
        if target.kind == "map":
            result = target.parameters[1]
        elif target is t.DEVICE:
            if field not in FIELDS:
                raise self._source.error(node.offset, f"device has no field {field!r}{_near(field, list(FIELDS))}")
            result = FIELDS[field]
        elif target.kind == "param":
            self._unifier.assignable((t.DYN,), (target,))
            result = t.DYN
        elif t.is_dynamic(target):
            result = t.DYN
        else:
            raise self._source.error(node.offset, f"a value of type {target} has no field {field!r}")
        return t.optional_of(result) if optional or inner is not None else result

    # --- calls

    def _call(self, node: syntax.Call) -> Type:
        if node.function == "_?._":
            return self._optional_select(node)
        given = [self._check(argument) for argument in node.arguments]
        if node.target is None:
            node.function = node.function.removeprefix(".")
            return self._resolve(node, given)
        prefix = qualified_name(node.target)
        name = f"{prefix}.{node.function}".removeprefix(".") if prefix is not None else None
        if name is not None and name in self._functions:
            node.function, node.target = name, None
            return self._resolve(node, given)
        given.insert(0, self._check(node.target))
        return self._resolve(node, given)

    def _optional_select(self, node: syntax.Call) -> Type:
        operand, field = node.arguments
        assert isinstance(field, syntax.Literal) and isinstance(field.value, str)  # noqa: S101, PT018  the parser's work
        self._check(field)
        node.overloads = list(self._functions["_?._"])
        return self._unifier.resolved(self._field(node, operand, field.value, optional=True))

    def _resolve(self, node: syntax.Call, given: list[Type]) -> Type:
        overloads = self._functions.get(node.function)
        if node.function in self._lacks:
            raise self._source.error(
                node.offset, f"function {node.function!r} needs Kubernetes {FUNCTION_SINCE[node.function]}"
            )
        if overloads is None:
            known = [name for name in self._functions if name[0].isalpha() and "@" not in name]
            raise self._source.error(node.offset, f"undeclared function {node.function!r}{_near(node.function, known)}")
        if node.function in {"_&&_", "_||_"}:
            return self._logic(node, given, overloads)
        method, arguments, result = node.target is not None, tuple(given), None
        for overload in overloads:
            if overload.method is not method:
                continue
            candidate = self._candidate(overload, arguments)
            if candidate is None:
                continue
            node.overloads.append(overload)
            if result is None:
                result = candidate
            elif not t.is_dynamic(result) and not candidate.same(result):
                result = t.DYN
        if result is None:
            raise self._no_overload(node, given, overloads)
        return result

    def _candidate(self, overload: Overload, given: tuple[Type, ...]) -> Type | None:
        if len(given) != len(overload.arguments):
            return None
        arguments, result = overload.arguments, overload.result
        if overload.parameters:
            fresh = {name: self._unifier.variable() for name in overload.parameters}
            arguments = tuple(_instantiated(a, fresh) for a in arguments)
            result = _instantiated(result, fresh)
        return self._unifier.resolved(result) if self._unifier.assignable(given, arguments) else None

    def _logic(self, node: syntax.Call, given: list[Type], overloads: tuple[Overload, ...]) -> Type:
        for argument, term in zip(node.arguments, given, strict=True):
            if not self._unifier.assignable((term,), (t.BOOL,)):
                sign = node.function.strip("_")
                raise self._source.error(argument.offset, f"{sign} takes bools, this is a value of type {term}")
        node.overloads = list(overloads)
        return t.BOOL

    def _no_overload(self, node: syntax.Call, given: list[Type], overloads: tuple[Overload, ...]) -> Exception:
        shown = [str(self._unifier.resolved(term, to_dyn=True)) for term in given]
        takes = sorted({_signature(o) for o in overloads if o.method is (node.target is not None)})
        applied = f"{shown[0]}.({', '.join(shown[1:])})" if node.target is not None else f"({', '.join(shown)})"
        hint = f"; it takes {' or '.join(takes[:4])}" if takes else "; it is not called this way"
        name = node.function.strip("_") or node.function
        return self._source.error(node.offset, f"{name} cannot be applied to {applied}{hint}")

    # --- literals and folds

    def _listliteral(self, node: syntax.ListLiteral) -> Type:
        element = None
        for position, item in enumerate(node.elements):
            term = self._check(item)
            if position in node.optional:
                term = self._unwrapped(item, term)
            element = self._joined(element, term)
        return t.list_of(element if element is not None else self._unifier.variable())

    def _mapliteral(self, node: syntax.MapLiteral) -> Type:
        key = value = None
        for entry in node.entries:
            key = self._joined(key, self._check(entry.key))
            term = self._check(entry.value)
            value = self._joined(value, self._unwrapped(entry.value, term) if entry.optional else term)
        if key is None or value is None:
            key, value = self._unifier.variable(), self._unifier.variable()
        return t.map_of(key, value)

    def _unwrapped(self, node: syntax.Expr, term: Type) -> Type:
        value = t.optional_value(term)
        if value is None and not t.is_dynamic(term):
            raise self._source.error(node.offset, f"expected an optional after '?', found a value of type {term}")
        return term if value is None else value

    def _joined(self, previous: Type | None, current: Type) -> Type:
        if previous is None:
            return current
        if self._unifier.assignable((previous,), (current,)):
            return t.most_general(previous, current)
        return t.DYN

    def _message(self, node: syntax.Message) -> Type:
        fields = MESSAGES.get(node.name.removeprefix("."))
        if fields is None:
            raise self._source.error(node.offset, f"{node.name} is not a message type that selectors can construct")
        node.name = node.name.removeprefix(".")
        for entry in node.entries:
            term = self._check(entry.value)
            if entry.field not in fields:
                raise self._source.error(entry.offset, f"{node.name} has no field {entry.field!r}")
            if entry.optional:
                term = self._unwrapped(entry.value, term)
            wanted = fields[entry.field]
            if not self._unifier.assignable((wanted,), (term,)):
                raise self._source.error(entry.offset, f"{entry.field} is of type {wanted}, not {term}")
        return MESSAGE_TYPES[node.name]

    def _fold(self, node: syntax.Fold) -> Type:
        over = self._check(node.range)
        initial = self._check(node.initial)
        variables = self._iteration(node, self._unifier.resolved(over))
        self._scopes.append({node.accumulator: syntax.Variable(node.accumulator, initial)})
        self._scopes.append(
            {name: syntax.Variable(name, term) for name, term in zip(node.variables, variables, strict=True)}
        )
        self._expect(node.condition, t.BOOL)
        self._expect(node.step, initial)
        self._scopes.pop()
        result = self._check(node.result)
        self._scopes.pop()
        return self._unifier.resolved(result)

    def _iteration(self, node: syntax.Fold, over: Type) -> tuple[Type, ...]:
        if not node.variables:
            return ()
        two = len(node.variables) == 2
        if over.kind == "list":
            return (t.INT, over.parameters[0]) if two else over.parameters
        if over.kind == "map":
            return over.parameters if two else over.parameters[:1]
        if over.kind in {"dyn", "error", "param"}:
            self._unifier.assignable((t.DYN,), (over,))
            return (t.DYN,) * len(node.variables)
        hint = ": an attribute's type is unknown, wrap it in dyn()" if over is t.ANY else ""
        raise self._source.error(node.range.offset, f"a value of type {over} cannot be iterated{hint}")

    def _expect(self, node: syntax.Expr, wanted: Type) -> None:
        term = self._check(node)
        if not self._unifier.assignable((wanted,), (term,)):
            raise self._source.error(node.offset, f"expected type {wanted}, found {term}")


def _instantiated(term: Type, fresh: dict[str, Type]) -> Type:
    if not term.generic:
        return term
    if term.kind == "param":
        return fresh[term.name]
    return Type(term.kind, term.name, tuple(_instantiated(p, fresh) for p in term.parameters))


def _signature(overload: Overload) -> str:
    shown = [str(argument) for argument in overload.arguments]
    return f"{shown[0]}.({', '.join(shown[1:])})" if overload.method else f"({', '.join(shown)})"


def _near(name: str, known: list[str]) -> str:
    import difflib  # noqa: PLC0415  only for errors

    found = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {found[0]!r}?" if found else ""


_CONSTANT_ARGUMENTS: Final[dict[str, Function]] = {
    "duration": to_duration,
    "timestamp": to_timestamp,
    "matches": pattern,
}
_INTEGERS: Final = frozenset({"int", "uint"})
_FORMATTED: Final = {
    **dict.fromkeys("do", _INTEGERS),
    **dict.fromkeys("fe", frozenset({"double", "string"})),
    **dict.fromkeys("xX", _INTEGERS | {"string", "bytes"}),
    "b": _INTEGERS | {"bool"},
    "s": _INTEGERS | {"list", "map", "double", "bool", "string", "timestamp", "bytes", "duration", "type", "null"},
}


def validate(source: syntax.SourceText, node: syntax.Expr, formatting: bool = False) -> None:
    """Raises CelSyntaxError at the first invalid literal or constant argument."""
    if isinstance(node, syntax.Call):
        _constant_argument(source, node)
        if node.function == "format":
            formatting = True
            _format_call(source, node)
    elif isinstance(node, syntax.ListLiteral) and not formatting:
        _list(source, node)
    elif isinstance(node, syntax.MapLiteral) and not formatting:
        _map(source, node)
    for child in syntax.children(node):
        validate(source, child, formatting)


def _constant_argument(source: syntax.SourceText, node: syntax.Call) -> None:
    check = _CONSTANT_ARGUMENTS.get(node.function)
    if check is None or not node.arguments or not isinstance(node.arguments[0], syntax.Literal):
        return
    argument = node.arguments[0]
    try:
        check(argument.value)
    except EvalError as error:
        raise source.error(argument.offset, f"invalid argument of {node.function}(): {error}") from error


def _value_type(source: syntax.SourceText, node: syntax.Expr, optional: bool) -> Type:
    if not optional:
        return node.type
    if not node.type.parameters:
        raise source.error(node.offset, "the type of an optional element cannot be inferred")
    return node.type.parameters[0]


def _list(source: syntax.SourceText, node: syntax.ListLiteral) -> None:
    first: Type | None = None
    for position, element in enumerate(node.elements):
        term = _value_type(source, element, position in node.optional)
        first = first or term
        _same(source, element, first, term)


def _map(source: syntax.SourceText, node: syntax.MapLiteral) -> None:
    key: Type | None = None
    value: Type | None = None
    for entry in node.entries:
        key = key or entry.key.type
        _same(source, entry.key, key, entry.key.type)
        term = _value_type(source, entry.value, entry.optional)
        value = value or term
        _same(source, entry.value, value, term)


def _same(source: syntax.SourceText, node: syntax.Expr, expected: Type | None, found: Type) -> None:
    if expected is not None and not expected.same(found, names=False):
        hint = (
            "; wrap an attribute in string() or int(), or all of them in dyn()"
            if "any" in {expected.kind, found.kind}
            else ""
        )
        raise source.error(node.offset, f"expected type {expected} like the elements before, found {found}{hint}")


def _format_call(source: syntax.SourceText, node: syntax.Call) -> None:
    text, arguments = node.target, node.arguments
    if not isinstance(text, syntax.Literal) or not isinstance(text.value, str):
        return
    if len(arguments) != 1 or not isinstance(arguments[0], syntax.ListLiteral):
        return
    elements = arguments[0].elements
    try:
        clauses = [clause for clause in parse_format(text.value) if clause.verb]
    except EvalError as error:
        raise source.error(text.offset, str(error)) from error
    if len(clauses) != len(elements):
        raise source.error(node.offset, f"the format has {len(clauses)} clauses, the list {len(elements)} arguments")
    for clause, element in zip(clauses, elements, strict=True):
        _formatted(source, clause.verb, element)


def _formatted(source: syntax.SourceText, verb: str, node: syntax.Expr) -> None:
    term = node.type
    if term.kind != "dyn" and term.kind not in _FORMATTED[verb]:
        raise source.error(node.offset, f"%{verb} cannot format a value of type {term}")
    if verb == "s" and isinstance(node, syntax.ListLiteral | syntax.MapLiteral):
        for child in syntax.children(node):
            _formatted(source, "s", child)

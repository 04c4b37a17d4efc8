"""A table-driven LALR parser for the selectors of Kubernetes 1.36, from text to syntax tree.

`grammar` generates the tables. Nesting is limited to 250 levels, as in cel-go. Macros are expanded while the tree is
built, as cel-go does.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from dra_driver.scheduler.cel import macros
from dra_driver.scheduler.cel.lexer import END, SourceText, Token, decoded, leading_number, tokens
from dra_driver.scheduler.cel.syntax import (
    Call,
    Expr,
    Ident,
    ListLiteral,
    Literal,
    MapEntry,
    MapLiteral,
    Message,
    Select,
)

MAX_NESTING: Final = 250
"""Levels of parentheses, calls, brackets or left-nested operators (cel-go parser.go, defaultMaxRecursionDepth)."""

_TABLES: Final = Path(__file__).with_name("tables.json")
_RESERVED: Final = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "false",
        "for",
        "function",
        "if",
        "import",
        "in",
        "let",
        "loop",
        "package",
        "namespace",
        "null",
        "return",
        "true",
        "var",
        "void",
        "while",
    ]
)
_OPENING: Final = frozenset(("LPAR", "LSQB", "LBRACE"))
_CLOSING: Final = frozenset(("RPAR", "RSQB", "RBRACE"))
_NAMES: Final = {
    "IDENT": "a name",
    "INT_LIT": "a number",
    "STRING_LIT": "a string",
    END: "the end of the expression",
}
# What can start an operand; errors say "an operand" instead of this list.
_OPERAND: Final = frozenset(
    [
        "BANG",
        "MINUS",
        "LPAR",
        "LSQB",
        "LBRACE",
        "DOT",
        "IDENT",
        "INT_LIT",
        "UINT_LIT",
        "FLOAT_LIT",
        "STRING_LIT",
        "MLSTRING_LIT",
        "BYTES_LIT",
        "BOOL_LIT",
        "NULL_LIT",
    ]
)


_OPERATORS: Final = ("&&", "||", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "?", "in")


class _Tables:
    """The parse tables in the form that `_run` reads fastest."""

    def __init__(self) -> None:
        raw: dict[str, Any] = json.loads(_TABLES.read_text(encoding="ascii"))
        self.start: int = raw["start"]
        self.end: int = raw["end"]
        self.states: list[dict[str, int]] = raw["states"]
        self.terminals: dict[str, str] = raw["terminals"]
        self.spelling = {name: text for text, name in self.terminals.items()}
        self.rules: list[tuple[str, str, int, tuple[int, ...], bool]] = []
        for name, origin, length, kept, inlined in raw["rules"]:
            passes = inlined or (
                length == 1 and name in {"relation", "addition", "multiplication", "member", "literal"}
            )
            self.rules.append((name, origin, length, tuple(kept), passes and name != "literal"))


@lru_cache(maxsize=1)
def _tables() -> _Tables:
    return _Tables()


def terminals() -> dict[str, str]:
    """Operator text -> terminal of the grammar."""
    return _tables().terminals


def parse(source: SourceText) -> Expr:
    """The syntax tree with expanded macros. Raises CelSyntaxError."""
    tables = _tables()
    stream = tokens(source, tables.terminals)
    _check_nesting(source, stream)
    builder = _Builder(source)
    tree: Expr = _run(source, tables, stream, builder)
    return tree


def _run(source: SourceText, tables: _Tables, stream: list[Token], builder: "_Builder") -> Any:
    states, values = [tables.start], []
    actions, rules = tables.states, tables.rules
    for token in stream:
        while True:
            action = actions[states[-1]].get(token.kind)
            if action is None:
                raise _unexpected(source, tables, stream, token)
            if action >= 0:
                states.append(action)
                values.append(token)
                break
            name, origin, length, kept, passes = rules[-action - 1]
            if not passes:
                parts = values[-length:]
                del values[-length:]
                values.append(builder.reduce(name, [parts[position] for position in kept], parts[0]))
                del states[-length:]
            else:
                del states[-1:]
            states.append(actions[states[-1]][origin])
            if states[-1] == tables.end and token.kind == END:
                return values[0]
    raise AssertionError("the last token ends every expression")


def _check_nesting(source: SourceText, stream: list[Token]) -> None:
    depth = 0
    for token in stream:
        if token.kind in _OPENING:
            depth += 1
            if depth > MAX_NESTING:
                raise source.error(token.offset, f"nested more than {MAX_NESTING} levels deep")
        elif token.kind in _CLOSING:
            depth -= 1


def _advanced(tables: _Tables, states: list[int], kind: str) -> list[int] | None:
    """The stack after a token of this kind, None if the token cannot follow."""
    states = list(states)
    while True:
        action = tables.states[states[-1]].get(kind)
        if action is None:
            return None
        if action >= 0:
            return [*states, action]
        _, origin, length, _, _ = tables.rules[-action - 1]
        del states[-length:]
        states.append(tables.states[states[-1]][origin])
        if states[-1] == tables.end and kind == END:
            return states


def _wanted(tables: _Tables, stream: list[Token], wrong: Token) -> set[str]:
    """The kinds of tokens that could follow in place of the wrong one."""
    states = [tables.start]
    for token in stream:
        if token is wrong:
            break
        states = _advanced(tables, states, token.kind) or states
    kinds = {kind for kind in tables.states[states[-1]] if kind == END or kind.upper() == kind}
    return {kind for kind in kinds if _advanced(tables, states, kind) is not None}


def _unexpected(source: SourceText, tables: _Tables, stream: list[Token], token: Token) -> Exception:
    wanted, words = _wanted(tables, stream, token), []
    if wanted >= _OPERAND - {"DOT"}:
        words.append("an operand (a name, a literal, a parenthesis)")
        wanted -= _OPERAND
    operators = {tables.terminals[text] for text in _OPERATORS}
    if len(wanted & operators) > 3:
        words.append("an operator")
        wanted -= operators | {"DOT", "LSQB", "LBRACE", "LPAR"}
    words += sorted(_NAMES.get(kind) or repr(tables.spelling.get(kind, kind)) for kind in wanted)
    seen = repr(token.text) if token.kind != END else "the end of the expression"
    return source.error(token.offset, f"syntax error at {seen}: expected {' or '.join(words)}")


class _Builder:
    """Builds the nodes of reduced rules. Each method has the name of its grammar rule."""

    def __init__(self, source: SourceText) -> None:
        self._source = source

    def reduce(self, name: str, parts: list[Any], first: Any) -> Any:
        if name.startswith("__"):
            # The repetition of a rule: the collected items and one more.
            return self.listinit(parts, first) if isinstance(parts[0], list) else list(parts)
        return getattr(self, name)(parts, first)

    # --- operators

    def ternary(self, parts: list[Any], _first: Any) -> Expr:
        return Call(parts[0].offset, "_?_:_", parts)

    def logical_or(self, parts: list[Any], _first: Any) -> Expr:
        return self._chained("_||_", parts)

    def logical_and(self, parts: list[Any], _first: Any) -> Expr:
        return self._chained("_&&_", parts)

    def _chained(self, function: str, parts: list[Any]) -> Expr:
        """A chain of one operator becomes one node with many terms, so that a long chain is not a deep tree."""
        left, right = parts
        if isinstance(left, Call) and left.function == function and not left.parenthesized:
            left.arguments.append(right)
            return left
        return Call(left.offset, function, [left, right])

    def _binary(self, parts: list[Any], _first: Any) -> Expr:
        (operator, left, offset), right = parts
        return Call(offset, operator, [left, right])

    relation = addition = multiplication = _binary

    def _left(operator: str) -> Any:  # type: ignore[misc]  # noqa: N805
        def half(self: "_Builder", parts: list[Any], _first: Any) -> tuple[str, Expr, int]:  # noqa: ARG001
            return operator, parts[0], parts[0].offset

        return half

    relation_lt, relation_le, relation_gt, relation_ge = _left("_<_"), _left("_<=_"), _left("_>_"), _left("_>=_")
    relation_eq, relation_ne, relation_in = _left("_==_"), _left("_!=_"), _left("@in")
    addition_add, addition_sub = _left("_+_"), _left("_-_")
    multiplication_mul, multiplication_div, multiplication_mod = _left("_*_"), _left("_/_"), _left("_%_")

    def nots(self, parts: list[Any], first: Any) -> tuple[int, int]:
        return (parts[0][0] + 1, parts[0][1]) if parts else (1, first.offset)

    negs = nots

    def not_(self, parts: list[Any], _first: Any) -> Expr:
        (count, offset), member = parts
        return Call(offset, "!_", [member]) if count % 2 else member

    def neg(self, parts: list[Any], _first: Any) -> Expr:
        (count, offset), member = parts
        if count % 2 == 0:
            return member  # type: ignore[no-any-return]
        number = leading_number(member) if count == 1 else None
        if number is not None:
            number.number = (number.number[0], "-" + number.number[1])  # type: ignore[index]
            return member  # type: ignore[no-any-return]
        return Call(offset, "-_", [member])

    # --- members

    def member_dot(self, parts: list[Any], _first: Any) -> Expr:
        return Select(parts[1].offset, parts[0], parts[1].text)

    def member_opt_dot(self, parts: list[Any], _first: Any) -> Expr:
        name = parts[1]
        return Call(name.offset, "_?._", [parts[0], Literal(name.offset, name.text)])

    def member_dot_arg(self, parts: list[Any], _first: Any) -> Expr:
        target, name = parts[0], parts[1]
        return macros.expand(self._source, Call(name.offset, name.text, parts[2] if len(parts) > 2 else [], target))

    def member_index(self, parts: list[Any], _first: Any) -> Expr:
        return Call(parts[1].offset, "_[_]", list(parts))

    def member_opt_index(self, parts: list[Any], _first: Any) -> Expr:
        return Call(parts[1].offset, "_[?_]", list(parts))

    def member_object(self, parts: list[Any], _first: Any) -> Expr:
        name = qualified_name(parts[0])
        if name is None or parts[0].parenthesized:
            raise self._source.error(parts[0].offset, "syntax error: expected a type name before '{'")
        return Message(parts[0].offset, name, parts[1] if len(parts) > 1 else [])

    # --- primaries

    def ident(self, parts: list[Any], _first: Any) -> Expr:
        return Ident(parts[0].offset, self._name(parts[0]))

    def dot_ident(self, parts: list[Any], _first: Any) -> Expr:
        return Ident(parts[0].offset, "." + self._name(parts[0]))

    def ident_arg(self, parts: list[Any], _first: Any) -> Expr:
        call = Call(parts[0].offset, self._name(parts[0]), parts[1] if len(parts) > 1 else [])
        return macros.expand(self._source, call)

    def dot_ident_arg(self, parts: list[Any], _first: Any) -> Expr:
        return Call(parts[0].offset, "." + self._name(parts[0]), parts[1] if len(parts) > 1 else [])

    def _name(self, token: Token) -> str:
        if token.text in _RESERVED:
            raise self._source.error(token.offset, f"{token.text} is a reserved word and cannot be a name")
        return token.text

    def paren_expr(self, parts: list[Any], _first: Any) -> Expr:
        parts[0].parenthesized = True
        return parts[0]  # type: ignore[no-any-return]

    def literal(self, parts: list[Any], _first: Any) -> Expr:
        return decoded(self._source, parts[0])

    def list_lit(self, parts: list[Any], first: Any) -> Expr:
        elements = parts[0] if parts else []
        optional = frozenset(i for i, element in enumerate(elements) if isinstance(element, tuple))
        return ListLiteral(first.offset, [e[0] if isinstance(e, tuple) else e for e in elements], optional)

    def map_lit(self, parts: list[Any], first: Any) -> Expr:
        return MapLiteral(first.offset, parts[0] if parts else [])

    def exprlist(self, parts: list[Any], _first: Any) -> list[Any]:
        return [parts[0], *parts[1]] if len(parts) > 1 else [parts[0]]

    def listinit(self, parts: list[Any], _first: Any) -> list[Any]:
        if len(parts) == 1:
            return [parts[0]]
        parts[0].append(parts[1])
        return parts[0]  # type: ignore[no-any-return]

    mapinits = fieldinits = listinit

    def opt_element(self, parts: list[Any], _first: Any) -> tuple[Any]:
        return (parts[0],)

    def entry(self, parts: list[Any], _first: Any) -> MapEntry:
        return self._entry(parts, optional=False)

    def opt_entry(self, parts: list[Any], _first: Any) -> MapEntry:
        return self._entry(parts, optional=True)

    def _entry(self, parts: list[Any], optional: bool) -> MapEntry:
        key, value = parts
        return MapEntry(key.offset, key.text if isinstance(key, Token) else key, value, optional)


def qualified_name(node: Expr) -> str | None:
    """``a.b.c`` for a chain of plain names, None for anything else."""
    if isinstance(node, Ident):
        return node.name
    if isinstance(node, Select) and not node.test:
        prefix = qualified_name(node.operand)
        return None if prefix is None else f"{prefix}.{node.field}"
    return None

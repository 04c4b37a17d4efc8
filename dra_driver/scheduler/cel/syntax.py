"""The tokens and the syntax tree of an expression: the parser builds it, the checker sets ``type``, `ir` reads it.
``offset`` is the position of the character that errors point at. Nodes belong to one compilation."""

import re
from typing import Final, NamedTuple

from msgspec import Struct

from dra_driver.core.errors import CelSyntaxError
from dra_driver.scheduler.cel.signatures import Overload
from dra_driver.scheduler.cel.types import DYN, Type
from dra_driver.scheduler.cel.values import UInt


class Variable(NamedTuple):
    """A name in scope. ``type_value`` is set for type names, which are constants."""

    name: str
    type: Type
    type_value: str | None = None


class _Annotations(Struct, eq=False, kw_only=True):
    parenthesized: bool = False
    type: Type = DYN


class Expr(_Annotations, eq=False):
    """Base of all nodes. ``parenthesized`` distinguishes ``-(1).abs`` from ``-1.abs``."""

    offset: int


class Literal(Expr, eq=False):
    """A constant value; ``number`` is the kind and text of a numeric token until the parser has its sign."""

    value: object
    number: tuple[str, str] | None = None


class Ident(Expr, eq=False):
    """A name. ``variable`` is the result of the checker."""

    name: str
    variable: Variable | None = None


class Select(Expr, eq=False):
    """``operand.field``, or with ``test`` the ``has(operand.field)`` of a macro. ``variable`` is set if the whole chain
    is a name."""

    operand: Expr
    field: str
    test: bool = False
    variable: Variable | None = None


class Call(Expr, eq=False):
    """A function, method (``target``) or operator. ``overloads`` are the candidates that the checker left."""

    function: str
    arguments: list[Expr]
    target: Expr | None = None
    overloads: list[Overload] = []


class ListLiteral(Expr, eq=False):
    """``[a, ?b]``; ``optional`` holds the positions written with a question mark."""

    elements: list[Expr]
    optional: frozenset[int] = frozenset()


class MapEntry(Struct, eq=False):
    offset: int
    key: Expr
    value: Expr
    optional: bool


class MapLiteral(Expr, eq=False):
    """``{k: v, ?k: v}``."""

    entries: list[MapEntry]


class FieldEntry(Struct, eq=False):
    offset: int
    field: str
    value: Expr
    optional: bool


class Message(Expr, eq=False):
    """``google.protobuf.Int64Value{value: 1}``."""

    name: str
    entries: list[FieldEntry]


class Fold(Expr, eq=False):
    """The expansion of a macro: an accumulator that is updated for each element of a range while a condition holds.
    ``variables`` are one or two names, or none for ``cel.bind``, whose range is empty."""

    range: Expr
    variables: tuple[str, ...]
    accumulator: str
    initial: Expr
    condition: Expr
    step: Expr
    result: Expr


def children(node: Expr) -> list[Expr]:
    if isinstance(node, Select):
        return [node.operand]
    if isinstance(node, Call):
        return [node.target, *node.arguments] if node.target is not None else node.arguments
    if isinstance(node, ListLiteral):
        return node.elements
    if isinstance(node, MapLiteral):
        return [part for entry in node.entries for part in (entry.key, entry.value)]
    if isinstance(node, Message):
        return [entry.value for entry in node.entries]
    if isinstance(node, Fold):
        return [node.range, node.initial, node.condition, node.step, node.result]
    return []


_SHOWN_WIDTH: Final = 160


class SourceText(Struct, eq=False):
    """One expression during its compilation, by one thread. ``copied`` counts nodes that macros have copied."""

    text: str
    copied: int = 0

    def place(self, offset: int) -> tuple[int, int]:
        before = self.text[:offset]
        return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1

    def caret(self, offset: int) -> str:
        """The line of ``offset`` and a caret below it; of a long line only the part around the caret."""
        _, column = self.place(offset)
        start = offset - column + 1
        end = self.text.find("\n", start)
        line = self.text[start : end if end >= 0 else None].replace("\t", " ").replace("\r", " ")
        cut = max(0, column - 1 - _SHOWN_WIDTH // 2)
        shown = line[cut : cut + _SHOWN_WIDTH]
        return f"  | {shown}\n  | {' ' * (column - 1 - cut)}^"

    def error(self, offset: int, message: str) -> CelSyntaxError:
        """The error to raise for a position; its text states line and column and shows the caret."""
        line, column = self.place(offset)
        caret = self.caret(offset)
        text = f"CEL expression does not compile: {line}:{column}: {message}\n{caret}"
        return CelSyntaxError(text, line=line, column=column, caret=caret, problem=message)


_ESCAPE: Final = r"(?:\\[abfnrtv\"'\\?`]|\\[xX][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\[0-3][0-7][0-7])"
_STRING: Final = "|".join(
    [
        rf'"""(?:{_ESCAPE}|[^\\])*?"""',
        rf"'''(?:{_ESCAPE}|[^\\])*?'''",
        r'[rR]"""[\s\S]*?"""',
        r"[rR]'''[\s\S]*?'''",
        rf'"(?:{_ESCAPE}|[^\\"\n\r])*"',
        rf"'(?:{_ESCAPE}|[^\\'\n\r])*'",
        r'[rR]"[^"\n\r]*"',
        r"[rR]'[^'\n\r]*'",
    ]
)
_TOKEN: Final = re.compile(
    "|".join(
        [
            r"(?P<SPACE>(?:[\t\n\f\r ]+|//[^\n]*)+)",
            rf"(?P<BYTES_LIT>[bB](?:{_STRING}))",
            rf"(?P<STRING_LIT>{_STRING})",
            r"(?P<IDENT>[A-Za-z_][A-Za-z0-9_]*)",
            r"(?P<FLOAT_LIT>[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?)",
            r"(?P<UINT_LIT>(?:0x[0-9a-fA-F]+|[0-9]+)[uU])",
            r"(?P<INT_LIT>0x[0-9a-fA-F]+|[0-9]+)",
            r"(?P<OPERATOR>&&|\|\||<=|>=|==|!=|[-+*/%!<>?:.,()\[\]{}])",
        ]
    ),
    re.ASCII,
)
_KEYWORDS: Final = {"true": "KEYWORD_LIT", "false": "KEYWORD_LIT", "null": "KEYWORD_LIT", "in": "in"}
IDENT: Final = "IDENT"
LITERALS: Final = frozenset({"INT_LIT", "UINT_LIT", "FLOAT_LIT", "STRING_LIT", "BYTES_LIT", "KEYWORD_LIT"})
END: Final = "$END"


class Token(NamedTuple):
    """One token, ``offset`` characters from the start. ``kind`` is the text of an operator or bracket, IDENT, one of
    LITERALS, or END."""

    kind: str
    text: str
    offset: int


def tokens(source: SourceText) -> list[Token]:
    """All tokens, then one of kind END. Raises CelSyntaxError at the first character that starts no token."""
    text, position, found = source.text, 0, []
    match = _TOKEN.match
    while position < len(text):
        hit = match(text, position)
        if hit is None:
            raise source.error(position, _complaint(text, position))
        kind, word = str(hit.lastgroup), hit.group()
        if kind == "OPERATOR":
            found.append(Token(word, word, position))
        elif kind != "SPACE":
            found.append(Token(_KEYWORDS.get(word, kind) if kind == IDENT else kind, word, position))
        position = hit.end()
    found.append(Token(END, "", len(text)))
    return found


def _complaint(text: str, position: int) -> str:
    character = text[position]
    if character in "\"'":
        return "unterminated string or unknown escape sequence; write \\\\ for a backslash"
    if character == "=":
        return "a single = is not an operator, write == to compare"
    if character in "&|":
        return f"a single {character} is not an operator, write {character * 2}"
    return f"unexpected character {character!r}"


_SIMPLE: Final = dict(zip("abfnrtv\\'\"`?", "\a\b\f\n\r\t\v\\'\"`?", strict=True))
_ESCAPED_CHARACTER: Final = re.compile(r"\\(?:([xX])(..)|u(....)|U(........)|([0-3][0-7][0-7])|(.))", re.S)
_INT_MAX: Final = 2**63


def decoded(source: SourceText, token: Token) -> Literal:
    """The node of a literal token; a number stays text until ``resolve_number``. Raises CelSyntaxError."""
    if token.kind in {"INT_LIT", "UINT_LIT", "FLOAT_LIT"}:
        return Literal(token.offset, None, (token.kind, token.text))
    if token.kind == "STRING_LIT":
        return Literal(token.offset, _text(source, token.offset, token.text, as_bytes=False))
    if token.kind == "BYTES_LIT":
        return Literal(token.offset, _text(source, token.offset, token.text[1:], as_bytes=True))
    return Literal(token.offset, {"true": True, "false": False, "null": None}[token.text])


def leading_number(node: Expr) -> Literal | None:
    """The number at the left end of a member such as ``1.abs``, to which a minus sign before it belongs."""
    while not node.parenthesized:
        if isinstance(node, Literal):
            return node if node.number is not None and node.number[0] != "UINT_LIT" else None
        if isinstance(node, Select):
            node = node.operand
        elif isinstance(node, Call) and node.target is not None:
            node = node.target
        elif isinstance(node, Call) and node.function in {"_[_]", "_[?_]", "_?._"}:
            node = node.arguments[0]
        else:
            return None
    return None


def resolve_number(source: SourceText, node: Literal) -> None:
    """Converts the text of a numeric literal into its value. Raises CelSyntaxError if it does not fit 64 bits."""
    if node.number is None:
        return
    kind, text = node.number
    node.number = None
    if kind == "FLOAT_LIT":
        node.value = float(text)
        if node.value in (float("inf"), float("-inf")):
            raise source.error(node.offset, "this number does not fit a double")
        return
    negative, digits = text.startswith("-"), text.lstrip("-").rstrip("uU")
    base = 16 if digits.startswith("0x") else 10
    value = int(digits, base) if len(digits) <= 400 else 2**64
    value = -value if negative else value
    if kind == "UINT_LIT":
        if value >= 2**64:
            raise source.error(node.offset, "this number does not fit an unsigned 64-bit integer")
        node.value = UInt(value)
    elif -_INT_MAX <= value < _INT_MAX:
        node.value = value
    else:
        raise source.error(node.offset, "this number does not fit a signed 64-bit integer")


def _text(source: SourceText, offset: int, token: str, as_bytes: bool) -> str | bytes:
    token = token.replace("\r\n", "\n").replace("\r", "\n")
    raw = token[0] in "rR"
    token = token[1:] if raw else token
    quote = 3 if len(token) >= 6 and token[:3] in {'"""', "'''"} else 1
    body = token[quote:-quote]
    if raw or "\\" not in body:
        return body.encode("utf-8", "surrogatepass") if as_bytes else body
    if as_bytes:
        return _unescaped_bytes(source, offset, body)
    return _ESCAPED_CHARACTER.sub(lambda match: _character(source, offset, match), body)


def _character(source: SourceText, offset: int, match: "re.Match[str]") -> str:
    _, byte, short, long, octal, simple = match.groups()
    if simple is not None:
        return _SIMPLE[simple]
    code = int(octal, 8) if octal is not None else int(byte or short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise source.error(offset, f"{match.group()} is not a Unicode character")
    return chr(code)


def _unescaped_bytes(source: SourceText, offset: int, body: str) -> bytes:
    out, position = bytearray(), 0
    for match in _ESCAPED_CHARACTER.finditer(body):
        out += body[position : match.start()].encode("utf-8", "surrogatepass")
        _, byte, short, long, octal, simple = match.groups()
        if short is not None or long is not None:
            raise source.error(offset, f"{match.group()} is not allowed in bytes, write \\x escapes")
        if simple is not None:
            out += _SIMPLE[simple].encode()
        else:
            out.append(int(octal, 8) if octal is not None else int(byte, 16))
        position = match.end()
    out += body[position:].encode("utf-8", "surrogatepass")
    return bytes(out)

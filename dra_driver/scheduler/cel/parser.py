"""Parse a selector of Kubernetes 1.36 by operator precedence. Follows the grammar of cel-go (parser/gen/CEL.g4) with
optional syntax (``.?``, ``[?]``, optional elements and entries), trailing commas, no mixing of ``!`` and ``-``, at most
250 levels. Macros are expanded while the tree is built."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dra_driver.core.errors import CelSyntaxError
from dra_driver.scheduler.cel import macros, syntax

MAX_NESTING: Final = 250
"""Levels of parentheses, calls, brackets or left-nested operators (cel-go parser.go, defaultMaxRecursionDepth)."""

_RESERVED: Final = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
        *("package", "namespace", "null", "return", "true", "var", "void", "while"),
    }
)
_PRECEDENCE: Final = {
    "||": 1,
    "&&": 2,
    **dict.fromkeys(("<", "<=", ">", ">=", "==", "!=", "in"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
_OPENING: Final = frozenset("([{")
_CLOSING: Final = frozenset(")]}")
_OPERAND: Final = "an operand (a name, a literal, a parenthesis)"
_OPERATOR: Final = "an operator"
_NAMES: Final = {syntax.IDENT: "a name", syntax.END: "the end of the expression"}


def parse(source: syntax.SourceText) -> syntax.Expr:
    stream = syntax.tokens(source)
    _check_nesting(source, stream)
    parser = _Parser(source, stream)
    try:
        tree = parser.expression()
    except RecursionError as error:  # the caller left too little of Python's stack
        raise source.error(0, "nested too deeply") from error
    parser.take(syntax.END, or_else=_OPERATOR)
    return tree


def _check_nesting(source: syntax.SourceText, stream: list[syntax.Token]) -> None:
    depth = 0
    for token in stream:
        if token.kind in _OPENING:
            depth += 1
            if depth > MAX_NESTING:
                raise source.error(token.offset, f"nested more than {MAX_NESTING} levels deep")
        elif token.kind in _CLOSING:
            depth -= 1


class _Parser:
    """The position in the tokens of one expression. Three Python frames for each level of brackets."""

    def __init__(self, source: syntax.SourceText, stream: list[syntax.Token]) -> None:
        self._source = source
        self._stream = stream
        self._at = 0

    # --- tokens

    def _next(self) -> syntax.Token:
        self._at += 1
        return self._stream[self._at - 1]

    @property
    def _kind(self) -> str:
        return self._stream[self._at].kind

    def _skip(self, kind: str) -> bool:
        found = self._kind == kind
        self._at += found
        return found

    def take(self, *kinds: str, or_else: str = "") -> syntax.Token:
        """The next token, which must be of one of these kinds. ``or_else``: what else could stand in its place."""
        if self._kind not in kinds:
            raise self._unexpected(or_else, *kinds)
        return self._next()

    def _unexpected(self, word: str, *kinds: str) -> CelSyntaxError:
        token = self._stream[self._at]
        words = [word] if word else []
        words += sorted(_NAMES.get(kind) or repr(kind) for kind in kinds)
        seen = "the end of the expression" if token.kind == syntax.END else repr(token.text)
        return self._source.error(token.offset, f"syntax error at {seen}: expected {' or '.join(words)}")

    # --- operators

    def expression(self, *others: str, conditional: bool = True) -> syntax.Expr:
        """``others`` are kinds of tokens that could stand here in place of an expression."""
        operands, waiting = [self._operand(others)], list[str]()
        while True:
            precedence = _PRECEDENCE.get(self._kind, 0)
            while waiting and _PRECEDENCE[waiting[-1]] >= precedence:
                right, left = operands.pop(), operands.pop()
                operands.append(_joined(waiting.pop(), left, right))
            if not precedence:
                break
            waiting.append(self._next().kind)
            operands.append(self._operand())
        (whole,) = operands
        if not conditional or not self._skip("?"):
            return whole
        yes = self.expression(conditional=False)
        self.take(":", or_else=_OPERATOR)
        return syntax.Call(whole.offset, "_?_:_", [whole, yes, self.expression()])

    def _operand(self, others: tuple[str, ...] = ()) -> syntax.Expr:
        first = self._stream[self._at]
        count = 0
        while first.kind in {"!", "-"} and self._skip(first.kind):
            count += 1
        read = _PRIMARIES.get(self._kind)
        if read is None:
            raise self._unexpected(_OPERAND, *(() if count else others))
        node = read(self, self._next())
        while self._kind in {".", "[", "{"} or (self._kind == "(" and _is_name(node)):
            kind = self._next().kind
            node = self._message(node) if kind == "{" else self._member(node, kind)
        if count % 2 == 0:
            return node
        if first.kind == "!":
            return syntax.Call(first.offset, "!_", [node])
        number = syntax.leading_number(node) if count == 1 else None
        if number is None or number.number is None:
            return syntax.Call(first.offset, "-_", [node])
        number.number = (number.number[0], "-" + number.number[1])
        return node

    def _member(self, node: syntax.Expr, kind: str) -> syntax.Expr:
        """``node`` with one ``.name``, call or index, whose first token was of this kind."""
        if kind == "(":
            arguments: list[syntax.Expr] = []
            if not self._skip(")"):
                arguments.append(self.expression(")"))
                while self.take(",", ")", or_else=_OPERATOR).kind == ",":
                    arguments.append(self.expression())
            if isinstance(node, syntax.Select):
                return macros.expand(self._source, syntax.Call(node.offset, node.field, arguments, node.operand))
            assert isinstance(node, syntax.Ident)  # noqa: S101  `_is_name`
            call = syntax.Call(node.offset, node.name, arguments)
            return call if node.name.startswith(".") else macros.expand(self._source, call)
        if kind == "[":
            optional = self._skip("?")
            key = self.expression() if optional else self.expression("?")
            self.take("]", or_else=_OPERATOR)
            return syntax.Call(key.offset, "_[?_]" if optional else "_[_]", [node, key])
        if self._skip("?"):
            name = self.take(syntax.IDENT)
            return syntax.Call(name.offset, "_?._", [node, syntax.Literal(name.offset, name.text)])
        name = self.take(syntax.IDENT, or_else="'?'")
        return syntax.Select(name.offset, node, name.text)

    def _message(self, node: syntax.Expr) -> syntax.Expr:
        entries: list[syntax.FieldEntry] = []
        while self._more("}", entries):
            if self._kind not in {syntax.IDENT, "?"}:
                raise self._unexpected("", syntax.IDENT, "?", "}", *(() if entries else ","))
            optional = self._skip("?")
            field = self.take(syntax.IDENT)
            self.take(":")
            entries.append(syntax.FieldEntry(field.offset, field.text, self.expression(), optional))
        name = qualified_name(node)
        if name is None or node.parenthesized:
            raise self._source.error(node.offset, "syntax error: expected a type name before '{'")
        return syntax.Message(node.offset, name, entries)

    # --- primaries

    def _literal(self, token: syntax.Token) -> syntax.Expr:
        return syntax.decoded(self._source, token)

    def _name(self, token: syntax.Token) -> syntax.Expr:
        name = self.take(syntax.IDENT) if token.kind == "." else token
        if name.text in _RESERVED:
            raise self._source.error(name.offset, f"{name.text} is a reserved word and cannot be a name")
        return syntax.Ident(name.offset, token.text + name.text if token.kind == "." else name.text)

    def _parenthesized(self, _token: syntax.Token) -> syntax.Expr:
        inner = self.expression()
        self.take(")", or_else=_OPERATOR)
        inner.parenthesized = True
        return inner

    def _list(self, token: syntax.Token) -> syntax.Expr:
        elements: list[syntax.Expr] = []
        optional: set[int] = set()
        while self._more("]", elements):
            if self._skip("?"):
                optional.add(len(elements))
                elements.append(self.expression())
            else:
                elements.append(self.expression("]", "?", *(() if elements else ",")))
        return syntax.ListLiteral(token.offset, elements, frozenset(optional))

    def _map(self, token: syntax.Token) -> syntax.Expr:
        entries: list[syntax.MapEntry] = []
        while self._more("}", entries):
            optional = self._skip("?")
            key = self.expression() if optional else self.expression("}", "?", *(() if entries else ","))
            self.take(":", or_else=_OPERATOR)
            entries.append(syntax.MapEntry(key.offset, key, self.expression(), optional))
        return syntax.MapLiteral(token.offset, entries)

    def _more(self, end: str, items: Sequence[object]) -> bool:
        """Return whether an item follows, before ``end``. One comma may follow the last item or stand alone."""
        if items and self.take(",", end, or_else=_OPERATOR).kind == end:
            return False
        if not items and self._skip(","):
            self.take(end)
            return False
        return not self._skip(end)


_PRIMARIES: Final[Mapping[str, Callable[[_Parser, syntax.Token], syntax.Expr]]] = {
    **dict.fromkeys(syntax.LITERALS, _Parser._literal),
    syntax.IDENT: _Parser._name,
    ".": _Parser._name,
    "(": _Parser._parenthesized,
    "[": _Parser._list,
    "{": _Parser._map,
}


def _is_name(node: syntax.Expr) -> bool:
    if isinstance(node, syntax.Select):
        return not (node.test or node.parenthesized)
    return isinstance(node, syntax.Ident) and not node.parenthesized


def _joined(operator: str, left: syntax.Expr, right: syntax.Expr) -> syntax.Expr:
    """A chain of ``&&`` or ``||`` becomes one node with many terms, so that a long chain is not a deep tree."""
    function = "@in" if operator == "in" else f"_{operator}_"
    if (
        operator in {"&&", "||"}
        and isinstance(left, syntax.Call)
        and left.function == function
        and not left.parenthesized
    ):
        left.arguments.append(right)
        return left
    return syntax.Call(left.offset, function, [left, right])


def qualified_name(node: syntax.Expr) -> str | None:
    """``a.b.c`` for a chain of plain names, None for anything else."""
    if isinstance(node, syntax.Ident):
        return node.name
    if isinstance(node, syntax.Select) and not node.test:
        prefix = qualified_name(node.operand)
        return None if prefix is None else f"{prefix}.{node.field}"
    return None

"""Splits an expression into tokens: the longest match at each place, as cel-go's lexer does (parser/gen/CEL.g4).

cel-python's terminals only approximate this. Keywords are never identifiers. ``as``, ``for`` and other reserved words
are identifiers here; the parser refuses them as names of variables.
"""

import re
from typing import Final, NamedTuple

from dra_driver.scheduler.cel.source import SourceText

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
_KEYWORDS: Final = {"true": "BOOL_LIT", "false": "BOOL_LIT", "null": "NULL_LIT", "in": "IN"}
END: Final = "$END"


class Token(NamedTuple):
    """One token. ``kind`` is the grammar's terminal; ``offset`` counts characters from the start of the expression."""

    kind: str
    text: str
    offset: int


def tokens(source: SourceText, terminals: dict[str, str]) -> list[Token]:
    """All tokens, then one of kind ``$END``. Raises CelSyntaxError at the first character that starts no token."""
    text, position, found = source.text, 0, []
    match = _TOKEN.match
    while position < len(text):
        hit = match(text, position)
        if hit is None:
            raise source.error(position, _complaint(text, position))
        kind, word = str(hit.lastgroup), hit.group()
        if kind == "OPERATOR":
            found.append(Token(terminals[word], word, position))
        elif kind != "SPACE":
            found.append(Token(_KEYWORDS.get(word, kind) if kind == "IDENT" else kind, word, position))
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

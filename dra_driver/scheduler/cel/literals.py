"""Values of literal tokens: numbers within 64 bits, strings and bytes with their escapes.

Follows cel-go parser/unescape.go: line ends become ``\\n``, escapes in bytes are single bytes, escapes in strings must
be Unicode scalar values.
"""

import re
from typing import Final

from dra_driver.scheduler.cel.lexer import Token
from dra_driver.scheduler.cel.source import SourceText
from dra_driver.scheduler.cel.syntax import Call, Expr, Literal, Select
from dra_driver.scheduler.cel.values import UInt

_SIMPLE: Final = dict(zip("abfnrtv\\'\"`?", "\a\b\f\n\r\t\v\\'\"`?", strict=True))
_ESCAPE: Final = re.compile(r"\\(?:([xX])(..)|u(....)|U(........)|([0-3][0-7][0-7])|(.))", re.S)
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
    return _ESCAPE.sub(lambda match: _character(source, offset, match), body)


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
    for match in _ESCAPE.finditer(body):
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

"""Finds names in a parsed expression that mean nothing, before any device is looked at.

cel-python reports them only when evaluation happens to reach them. Owns the list of known names and the walk; refuses
to know values. What Kubernetes knows and this evaluator does not yet is refused with that reason.
"""

from collections.abc import Iterator
from typing import Final

import lark
from celpy.evaluation import base_functions

from dra_driver.cel.device import FIELDS
from dra_driver.cel.library import FUNCTIONS
from dra_driver.errors import CelSyntaxError

_MACROS: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})
_TYPES: Final = frozenset(
    {"bool", "bytes", "double", "duration", "int", "list", "map", "null_type", "string", "timestamp", "type", "uint"}
)
_BASE: Final = frozenset(name for name in base_functions if name.isidentifier())
_CALLS: Final = frozenset({"has", *_BASE, *filter(str.isidentifier, FUNCTIONS)})
_METHODS: Final = frozenset({*_CALLS, "min"}) - {"has", "quantity", "semver", "isQuantity", "isSemver", "sign", "dyn"}
_LATER: Final = frozenset({"sets", "lists", "optional", "cel", "math", "ip", "isIP", "cidr", "isCIDR", "url", "isURL"})


def check_names(expression: lark.Tree[lark.Token]) -> None:
    """Raise CelSyntaxError on the first variable, function, method or field of ``device`` that does not exist."""
    _check(expression, frozenset({"device"}))


def _check(tree: lark.Tree[lark.Token], scope: frozenset[str]) -> None:
    if tree.data in ("ident", "dot_ident"):
        _known(_token(tree, 0), scope | _TYPES, "undeclared reference to")
    elif tree.data in ("ident_arg", "dot_ident_arg"):
        _known(_token(tree, 0), _CALLS, "undeclared reference to function")
    elif tree.data == "member_dot" and _is_device(tree.children[0]) and "device" in scope:
        _known(_token(tree, 1), FIELDS, "a device has no field")
    elif tree.data == "member_object":
        raise _error(f"{_where(tree)}: message construction is not part of device selectors")
    elif tree.data == "member_dot_arg":
        method = _token(tree, 1)
        if method in _MACROS:
            _check_macro(tree, scope)
            return
        _check_receiver(tree)
        _known(method, _METHODS, "undeclared reference to method")
    for child in _subtrees(tree):
        _check(child, scope)


def _check_macro(tree: lark.Tree[lark.Token], scope: frozenset[str]) -> None:
    receiver, name, *rest = tree.children
    arguments = list(_subtrees(rest[0])) if rest and isinstance(rest[0], lark.Tree) else []
    variable = _plain_name(arguments[0]) if arguments else None
    if len(arguments) != 2 or variable is None:
        more = "; the forms with two variables or a filter are not supported by this evaluator" if arguments else ""
        raise _error(f"{_where(tree)}: {name}() takes a variable name and an expression{more}")
    if isinstance(receiver, lark.Tree):
        _check(receiver, scope)
    _check(arguments[1], scope | {variable})


def _check_receiver(tree: lark.Tree[lark.Token]) -> None:
    """``sets.contains(…)`` is a function with a dotted name, not a method of a variable ``sets``."""
    receiver = _plain_name(tree.children[0])
    if receiver in _LATER:
        raise _error(f"{_where(tree)}: {receiver}.{tree.children[1]}() is not supported by this evaluator")


def _known(token: lark.Token, known: frozenset[str], complaint: str) -> None:
    if token in known:
        return
    if token in _LATER:
        raise _error(f"{token.line}:{token.column}: {token}() is not supported by this evaluator")
    raise _error(f"{token.line}:{token.column}: {complaint} '{token}'")


def _is_device(node: object) -> bool:
    return _plain_name(node) == "device"


def _plain_name(node: object) -> str | None:
    """The name, when the node is nothing but an identifier (every rule on the way has one child)."""
    while isinstance(node, lark.Tree) and len(node.children) == 1:
        if node.data == "ident":
            return str(node.children[0])
        node = node.children[0]
    return None


def _token(tree: lark.Tree[lark.Token], index: int) -> lark.Token:
    token = tree.children[index]
    if not isinstance(token, lark.Token):
        raise _error(f"{_where(tree)}: expected a name")
    return token


def _subtrees(tree: lark.Tree[lark.Token]) -> Iterator[lark.Tree[lark.Token]]:
    return (child for child in tree.children if isinstance(child, lark.Tree))


def _where(tree: lark.Tree[lark.Token]) -> str:
    return f"{tree.meta.line}:{tree.meta.column}"


def _error(text: str) -> CelSyntaxError:
    return CelSyntaxError(f"CEL expression does not compile: {text}")

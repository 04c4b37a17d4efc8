"""Compiling and running one device selector.

Owns the contract towards the scheduler: what compiles, what is an error, and that the result is a bool. Evaluation is
cel-python's interpreter (its compiled runner keeps state in module globals and is not thread-safe as of 0.5.0). Limits
follow k8s.io/api resource/v1 (10 KiB of text) and bound what cel-python does not: nesting and the number of steps.
"""

import sys
import threading
from functools import lru_cache
from typing import Any, Final

import celpy
import lark
from celpy.celparser import CELParseError
from celpy.celtypes import BoolType
from celpy.evaluation import CELEvalError, CELUnsupportedError, Evaluator

from dra_driver.cel.device import DeviceView
from dra_driver.cel.library import FUNCTIONS
from dra_driver.cel.names import check_names
from dra_driver.errors import CelEvaluationError, CelSyntaxError

MAX_LENGTH: Final = 10 * 1024
"""Longest expression in bytes (CELSelectorExpressionMaxLength)."""

# A level of parentheses is about ten grammar rules; cel-python needs three frames for each.
_MAX_TREE_DEPTH: Final = 1000
_RECURSION_LIMIT: Final = 6000
# A realistic selector takes some hundred steps; this many take about a second.
_MAX_STEPS: Final = 100_000

_parser_lock = threading.Lock()  # cel-python's parser is one object per process, made on first use


class _TooExpensiveError(Exception):
    pass


class _BoundedEvaluator(Evaluator):
    """The interpreter with an end: macros over nested lists would otherwise run for hours."""

    def __init__(self, ast: Any, activation: Any, steps: list[int] | None = None) -> None:
        super().__init__(ast, activation)
        self._steps = steps if steps is not None else [0]

    def visit_children(self, tree: Any) -> Any:
        self._steps[0] += 1
        if self._steps[0] > _MAX_STEPS:
            raise _TooExpensiveError
        return super().visit_children(tree)

    def sub_evaluator(self, ast: Any) -> "_BoundedEvaluator":
        return _BoundedEvaluator(ast, self.activation, self._steps)


class _Runner(celpy.InterpretedRunner):
    def evaluate(self, context: Any) -> Any:
        return _BoundedEvaluator(self.ast, self.new_activation()).evaluate(context)


class Program:
    """A compiled expression. Thread-safe."""

    __slots__ = ("_runner", "expression")

    def __init__(self, expression: str, runner: Any) -> None:
        self.expression = expression
        self._runner = runner

    def evaluate(self, device: DeviceView) -> bool:
        """Whether the device is selected. Raises CelEvaluationError, which ends the pod's scheduling attempt."""
        try:
            result = self._runner.evaluate(device.activation)
        except CELEvalError as error:
            raise CelEvaluationError(f"CEL expression {_shown(self.expression)}: {_text(error)}") from error
        except _TooExpensiveError as error:
            raise CelEvaluationError(f"CEL expression {_shown(self.expression)}: too many steps") from error
        except RecursionError as error:
            raise CelEvaluationError(f"CEL expression {_shown(self.expression)}: nested too deeply") from error
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, CELUnsupportedError) as error:
            # cel-python lets some operand mismatches inside macros through as Python's own exceptions.
            raise CelEvaluationError(f"CEL expression {_shown(self.expression)}: no such overload: {error}") from error
        if type(result) is not BoolType:
            kind = type(result).__name__.removesuffix("Type").lower()
            raise CelEvaluationError(f"CEL expression {_shown(self.expression)}: result is a {kind}, expected a bool")
        return bool(result)


@lru_cache(maxsize=1024)
def compile_selector(expression: str) -> Program:
    """The program for an expression; the same text gives the same program. Raises CelSyntaxError."""
    size = len(expression.encode("utf-8", "surrogatepass"))
    if size > MAX_LENGTH:
        raise CelSyntaxError(f"CEL expression of {size} bytes is too long: at most {MAX_LENGTH} are allowed")
    _refuse_optionals(expression)
    with _parser_lock:
        tree = _parse(expression)
    _check_depth(tree)
    check_names(tree)
    return Program(expression, _Runner(_environment(), tree, FUNCTIONS))


def _parse(expression: str) -> Any:
    try:
        return _environment().compile(expression)
    except CELParseError as error:
        where = f"{error.line}:{error.column}: " if error.line else ""
        place = str(error.args[0]).rstrip()
        raise CelSyntaxError(f"CEL expression does not compile: {where}syntax error\n{place}") from error
    except (lark.exceptions.LarkError, RecursionError) as error:
        raise CelSyntaxError(f"CEL expression does not compile: syntax error in {_shown(expression)}") from error


@lru_cache(maxsize=1)
def _environment() -> celpy.Environment:
    environment = celpy.Environment(runner_class=celpy.InterpretedRunner)
    # The constructor lowers or raises the limit of the whole process to 2500, too low for what Kubernetes accepts.
    sys.setrecursionlimit(_RECURSION_LIMIT)
    return environment


def _refuse_optionals(expression: str) -> None:
    """Say clearly what the grammar of cel-python cannot read, outside of string literals."""
    plain = _without_strings(expression)
    for spelling in (".?", "[?"):
        if spelling in plain:
            raise CelSyntaxError(
                f"CEL expression does not compile: optional access {spelling} is not supported by this evaluator, "
                "use has()"
            )


def _without_strings(expression: str) -> str:
    kept, quote, position = [], "", 0
    while position < len(expression):
        character = expression[position]
        if quote:
            position += character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            kept.append(character)
        position += 1
    return "".join(kept)


def _check_depth(tree: Any) -> None:
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > _MAX_TREE_DEPTH:
            raise CelSyntaxError("CEL expression does not compile: nested too deeply")
        level = [child for node in level for child in node.children if isinstance(child, lark.Tree)]


def _text(error: CELEvalError) -> str:
    """The message, in Kubernetes' words where cel-python has others; never the activation that it may append."""
    message = str(error.args[0]).partition(" (in activation")[0]
    return message.replace("no such member in mapping: ", "no such key: ")


def _shown(expression: str) -> str:
    flat = " ".join(expression.split())
    return repr(flat if len(flat) <= 200 else flat[:200] + "…")

"""The text of an expression and positions in it.

Builds errors that state line and column (both from 1) and show the line of text with a caret below the position.
"""

from typing import Final

from dra_driver.core.errors import CelSyntaxError

_SHOWN_WIDTH: Final = 160


class SourceText:
    """One expression during its compilation, by one thread. ``copied`` counts nodes that macros have copied."""

    __slots__ = ("copied", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.copied = 0

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, both from 1."""
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

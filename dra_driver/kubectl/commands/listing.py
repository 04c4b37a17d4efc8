"""The options that every command with a list shares (-n, -A, -l, -o, -w), and how it prints the list."""

import argparse
import csv
import gc
import json
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args

from msgspec import Struct, to_builtins
from msgspec.structs import fields

from dra_driver.core import yaml_text
from dra_driver.core.command_line.table import TableColumn, show
from dra_driver.core.document import JsonDocument, to_wire
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import WIDTH, folded, printable
from dra_driver.core.time import LONGEST_S, parse_duration
from dra_driver.kubectl.commands.source import namespace_of, tell_gaps, wants_colour

if TYPE_CHECKING:
    from dra_driver.kube.label_selector import LabelTerm

TABLE: Final = "table"
WIDE: Final = "wide"
_WATCH_S: Final = 2.0
_HOME: Final = "\x1b[H\x1b[2J"
"""Clears the terminal."""
_LEAST_REST: Final = 3
"""A watch reads again after this many times the duration of the last read, at the earliest after `_WATCH_S`."""
T = TypeVar("T")
Wire = Mapping[str, Any]


class Listed(Struct, Generic[T], frozen=True, kw_only=True):
    """A list in all forms of output. ``rows`` are the rows of the table, ``-o name`` prints the ``name`` of each;
    ``noun`` names the rows in the message about an empty list."""

    document: JsonDocument
    rows: Sequence[T]
    columns: Sequence[TableColumn[T]]
    name: Callable[[T], str]
    noun: str
    namespace: str | None = None
    """That of the list, None for several."""
    unknown: str = ""
    """The reason for an unknown list: "the claims cannot be read"."""


def add_output(parser: argparse._ActionsContainer, *forms: str, default: str = TABLE) -> None:
    """Add ``-o``. The default form is not one of ``forms``."""
    parser.add_argument(
        "-o", "--output", choices=(default, *forms), default=default, metavar="|".join(forms), help="output format"
    )


def add_list(
    parser: argparse.ArgumentParser, *, labels_of: str = "claims", namespaced: bool = True, csv: bool = False
) -> None:
    """Add -n, -A, -l, -o and -w. ``labels_of`` names the objects whose labels -l selects."""
    default = "default: the namespace of the context" if namespaced else "only devices of this namespace's claims"
    parser.add_argument("-n", "--namespace", metavar="NAME", help=default)
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces")
    add_selector(parser, labels_of)
    add_output(parser, WIDE, "name", "json", "yaml", *(("csv",) if csv else ()))
    add_watch(parser)


def add_selector(parser: argparse.ArgumentParser, labels_of: str) -> None:
    parser.add_argument(
        "-l", "--selector", type=_selector, default=(), metavar="LABELS",
        help=f"only {labels_of} with these labels, such as team=a,tier!=test",
    )  # fmt: skip


def add_watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-w", "--watch", action="store_true", help="print changes until Ctrl-C")


def duration(text: str, *, least_s: float = 1, most_s: float = LONGEST_S) -> float:
    """The ``type`` of an option with a duration, in seconds."""
    try:
        return parse_duration(text, least_s=least_s, most_s=most_s)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def scope_of(args: argparse.Namespace) -> str | None:
    """Return the namespace of -n or the context; None with -A. Raises as `namespace_of`."""
    return None if args.all_namespaces else namespace_of(args)


def selected(terms: "Sequence[LabelTerm]", items: Sequence[Wire]) -> Sequence[Wire]:
    """Return the objects with labels that meet the selector of -l."""
    from dra_driver.kube.label_selector import selects

    return [item for item in items if selects(terms, item)] if terms else items


def named(args: argparse.Namespace, rows: Sequence[T], name_of: Callable[[T], str]) -> Sequence[T]:
    """Return the rows of the names in ``args``, all rows without names. Raises ConfigurationError for a name without a
    row, and for names beside a filter."""
    names = args.names
    if names and (args.selector or args.node):
        raise ConfigurationError("names cannot be combined with -l or --node")
    missing = set(names) - set(map(name_of, rows))
    if missing:
        raise ConfigurationError(f"not found: {', '.join(sorted(missing))}", reason="NotFound")
    return [row for row in rows if name_of(row) in names] if names else rows


def namespace_column(args: argparse.Namespace, cell: Callable[[T], str]) -> list[TableColumn[T]]:
    """Return the column NAMESPACE for a table over several namespaces."""
    return [TableColumn("NAMESPACE", cell)] if args.all_namespaces else []


def print_list(args: argparse.Namespace, read: Callable[[], Listed[T]], *, redraw: bool = False) -> int:
    """Print the list, and with -w its changes until an interrupt; with ``redraw`` the whole list instead. Return 1 for
    an unknown list."""
    is_watched = getattr(args, "watch", False)
    if is_watched and args.output not in (TABLE, WIDE, "name"):
        raise ConfigurationError(f"-w: expected a table, -o wide or -o name, got -o {args.output}")
    if is_watched and getattr(args, "cluster_state", None):
        raise ConfigurationError("-w: a file does not change; omit --cluster-state")
    began = time.monotonic()
    found = read()
    if args.output not in ("json", "yaml"):  # their documents have the gaps
        tell_gaps(getattr(found.document, "gaps", ()))
    status = _print(args, found)
    shown = _lines(args, found)
    gaps = getattr(found.document, "gaps", ())
    while is_watched:
        sys.stdout.flush()
        time.sleep(max(_WATCH_S, _LEAST_REST * (time.monotonic() - began)))
        began = time.monotonic()
        gc.collect()  # `state_of` disables the automatic collection
        found = read()
        now = _lines(args, found)
        before = set(shown)
        changed = [row for row, line in zip(found.rows, now, strict=True) if line not in before]
        if redraw:
            print(_HOME if sys.stdout.isatty() else "")
            _print(args, found)
        elif changed:
            _print_rows(args, found.columns, changed, found.name, heading=not shown)
        known, gaps = gaps, getattr(found.document, "gaps", ())
        tell_gaps(gap for gap in gaps if gap not in known)
        if not redraw and not gaps:  # rows that cannot be read are not deleted
            for space, name in dict.fromkeys(line[:2] for line in shown if line[:2] not in {each[:2] for each in now}):
                place = f" from {space} namespace" if space else ""
                print(printable(f"{name} deleted{place}"), file=sys.stderr)
        shown = now
    return status


def print_document(form: str, document: JsonDocument) -> None:
    """Print a document as ``json`` or ``yaml``."""
    data = to_wire(document)
    if form == "yaml":
        print(yaml_text.dump(data, width=118), end="")
    else:
        is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        print(json.dumps(data, indent=2, ensure_ascii=not is_utf8))


_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def print_csv(document: JsonDocument) -> None:
    """Print the items of a document below their keys. Quote names that a spreadsheet would compute."""
    (items,) = (each for each in fields(document) if each.name == "items")
    (item,) = get_args(items.type)
    rows = to_builtins(document)["items"]
    keys = [*(rows[0].get("key", {}) if rows else {})]
    names = [each.encode_name for each in fields(item) if each.name != "key"]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(keys + names)
    for row in rows:
        writer.writerow([_csv_cell(row["key"][name]) for name in keys] + [_csv_cell(row.get(name)) for name in names])


def _csv_cell(value: object) -> str | int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    line = "" if value is None else printable(str(value).lower() if isinstance(value, bool) else str(value))
    return f"'{line}" if line.startswith(_FORMULA) else line


def print_text(text: str) -> None:
    """Print a text that ends with a newline; on a narrow terminal, wrap its long lines between words."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    lines = text.splitlines()
    if 0 < width < WIDTH:
        lines = [part for line in lines for part in _folded(line, width)]
    print("\n".join(lines))


def _folded(line: str, width: int) -> list[str]:
    indent = " " * min(len(line) - len(line.lstrip()) + 2, width // 2)
    return folded(line, indent, width) if line else [line]


def _print(args: argparse.Namespace, found: Listed[T]) -> int:
    if args.output in ("json", "yaml"):
        print_document(args.output, found.document)
    elif args.output == "csv":
        print_csv(found.document)
    elif found.rows:
        _print_rows(args, found.columns, found.rows, found.name)
    elif not found.unknown:
        place = f" in {printable(found.namespace)} namespace" if found.namespace else ""
        print(f"No {found.noun} found{place}.", file=sys.stderr)
    if not found.rows and found.unknown:
        print(f"Unknown: {found.unknown}.", file=sys.stderr)
        return 1
    return 0


def _print_rows(
    args: argparse.Namespace, columns: Sequence[TableColumn[T]], rows: Sequence[T], name: Callable[[T], str], *,
    heading: bool = True,
) -> None:  # fmt: skip
    if args.output == "name":
        # A claim with several devices has several rows, and two namespaces may have claims of one name.
        print("\n".join({(getattr(row, "namespace", ""), name(row)): printable(name(row)) for row in rows}.values()))
        return
    columns = shown_columns(args, columns)
    cells = [[column.cell(row) for column in columns] for row in rows]
    print_table([column.heading for column in columns], cells, full=args.output == WIDE, heading=heading)


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, full: bool = False, heading: bool = True
) -> None:
    show(headings, rows, colour=wants_colour(), full=full, heading=heading)


def shown_columns(args: argparse.Namespace, columns: Sequence[TableColumn[T]]) -> Sequence[TableColumn[T]]:
    return [column for column in columns if args.output == WIDE or not column.wide]


def _lines(args: argparse.Namespace, found: Listed[T]) -> list[tuple[str, ...]]:
    """Return the namespace and name of each row, and its cells that count as a change."""
    columns = [column for column in shown_columns(args, found.columns) if not column.live]
    return [
        (getattr(row, "namespace", ""), found.name(row), *(column.cell(row) for column in columns))
        for row in found.rows
    ]


def _selector(text: str) -> "tuple[LabelTerm, ...]":
    from dra_driver.kube.label_selector import parse_selector

    try:
        return parse_selector(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error

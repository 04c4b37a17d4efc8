"""Generates the parse tables from cel-python's lark grammar, extended to what Kubernetes' parser accepts.

Replaces the rules in which cel-python's ``cel.lark`` differs from cel-go's grammar (parser/gen/CEL.g4) with optional
syntax: ``.?``, ``[?]``, optional elements and entries, trailing commas, no mixing of ``!`` and ``-``. Runs as
``python -m dra_driver.scheduler.cel.grammar`` and in a test that compares the tables. Commands load the generated
tables, because building them would take longer than a command may take to start.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

TABLES = Path(__file__).with_name("tables.json")

# Rules of cel.lark that are replaced. Terminals need only their names, because lexer.py replaces lark's lexer.
_REPLACED = {
    "expr": '?expr : conditionalor | conditionalor "?" conditionalor ":" expr -> ternary',
    "conditionalor": '?conditionalor : conditionaland | conditionalor "||" conditionaland -> logical_or',
    "conditionaland": '?conditionaland : relation | conditionaland "&&" relation -> logical_and',
    "unary": "?unary : member | nots member -> not_ | negs member -> neg",
    "unary_not": 'nots : "!" | nots "!"',
    "unary_neg": 'negs : "-" | negs "-"',
    "member_dot": 'member_dot : member "." IDENT\nmember_opt_dot : member "." "?" IDENT',
    "member_index": 'member_index : member "[" expr "]"\nmember_opt_index : member "[" "?" expr "]"',
    "member_object": 'member_object : member "{" [fieldinits] [","] "}"',
    "member": "?member : member_dot | member_dot_arg | member_index | member_object | primary"
    " | member_opt_dot | member_opt_index",
    "primary": "?primary : literal | dot_ident_arg | dot_ident | ident_arg | paren_expr | list_lit | map_lit | ident",
    "list_lit": 'list_lit : "[" [listinit] [","] "]"',
    "map_lit": 'map_lit : "{" [mapinits] [","] "}"',
    "fieldinits": 'fieldinits : fieldinit | fieldinits "," fieldinit\nfieldinit : IDENT ":" expr -> entry'
    ' | "?" IDENT ":" expr -> opt_entry',
    "mapinits": 'mapinits : mapinit | mapinits "," mapinit\n'
    'mapinit : expr ":" expr -> entry | "?" expr ":" expr -> opt_entry\n'
    'listinit : element | listinit "," element\n?element : expr | "?" expr -> opt_element',
    "INT_LIT": "INT_LIT : /0/",
    "UINT_LIT": "UINT_LIT : /0u/",
    "FLOAT_LIT": "FLOAT_LIT : /0e/",
    "STRING_LIT": "STRING_LIT : /s/",
    "MLSTRING_LIT": "MLSTRING_LIT : /m/",
    "BYTES_LIT": "BYTES_LIT : /b/",
}


def source() -> str:
    """cel-python's grammar with the replacements."""
    spec = importlib.util.find_spec("celpy")
    if spec is None or spec.origin is None:
        raise RuntimeError("cel-python is not installed: its grammar is needed to generate the parse tables")
    text = Path(spec.origin).with_name("cel.lark").read_text(encoding="utf-8")
    for name, rule in _REPLACED.items():
        pattern = rf"^{name}\s*:.*?(?=^\S|\Z)"
        if not re.search(pattern, text, flags=re.M | re.S):
            raise RuntimeError(f"cel-python's grammar has no rule {name}: look at what changed in cel.lark")
        text = re.sub(pattern, rule.replace("\\", "\\\\") + "\n\n", text, count=1, flags=re.M | re.S)
    return text


def build() -> dict[str, Any]:
    """The LALR tables: ``rules`` as [name, origin, length, kept positions, inlined], ``states`` as token -> action."""
    from lark import Lark  # noqa: PLC0415  heavy, and only needed here
    from lark.parsers.lalr_analysis import Shift  # noqa: PLC0415

    lark = Lark(source(), parser="lalr", start="expr", maybe_placeholders=False)
    table = lark.parser.parser._parse_table
    # Rules and states have no stable order in lark.
    ordered = sorted(lark.rules, key=lambda rule: (str(rule.origin.name), str(rule.expansion)))
    rules = {rule: number for number, rule in enumerate(ordered)}
    numbers, queue = {table.start_states["expr"]: 0}, [table.start_states["expr"]]
    states: list[dict[str, int]] = []
    for state in queue:
        actions = {}
        for symbol, (action, argument) in sorted(table.states[state].items()):
            if action is Shift:
                if argument not in numbers:
                    numbers[argument] = len(numbers)
                    queue.append(argument)
                actions[symbol] = numbers[argument]
            else:
                actions[symbol] = -rules[argument] - 1
        states.append(actions)
    return {
        "start": 0,
        "end": numbers[table.end_states["expr"]],
        "rules": [_described(rule) for rule in ordered],
        "states": states,
        "terminals": {t.pattern.value: t.name for t in lark.terminals if t.pattern.type == "str"},
    }


def _described(rule: Any) -> list[Any]:
    """A reduction as data: which children are kept (punctuation is dropped) and whether a single child replaces it."""
    kept = [position for position, symbol in enumerate(rule.expansion) if not getattr(symbol, "filter_out", False)]
    origin = str(rule.origin.name)
    return [rule.alias or origin, origin, len(rule.expansion), kept, bool(rule.options.expand1 and not rule.alias)]


def rendered() -> str:
    return json.dumps(build(), separators=(",", ":"), sort_keys=True) + "\n"


if __name__ == "__main__":
    TABLES.write_text(rendered(), encoding="utf-8")
    sys.exit(0)

"""How deep a YAML text may be nested.

libyaml's loader calls itself for each level, and C has no limit of its own there: a text of 60,000 brackets ends the
process. Its parser does not, so what anyone may write is looked at by that one first.
"""

from typing import Any, Final

MAX_DEPTH: Final = 100


def check_nesting(text: str) -> None:
    """Raises ValueError for more than `MAX_DEPTH` levels, and YAMLError for what is no YAML."""
    import yaml  # noqa: PLC0415 - a node with real GPUs never needs YAML

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                mark: Any = event.start_mark
                raise ValueError(f"line {mark.line + 1}: nested more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1

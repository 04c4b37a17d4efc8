"""Reads and translates the inputs of these tests."""

from functools import cache
from pathlib import Path
from typing import Any

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.lint import ManifestSource, known_from_catalog, lint, plain_documents
from dra_driver.kubectl.lint.finding import LintReport
from dra_driver.kubectl.migrate import InputDocument, MigrateOptions, Translation, translate

INPUTS = Path(__file__).parent / "inputs"
NAMES = sorted(path.stem for path in INPUTS.glob("*.yaml"))


def documents(text: str, source: str = "input.yaml") -> list[InputDocument]:
    """The documents of a text, which can be read."""
    found, problems = plain_documents(ManifestSource(name=source, text=text))
    if problems:
        raise ConfigurationError(problems[0])
    return [
        InputDocument(source=source, number=each.number, value=each.value, line=each.line, lines=each.lines)
        for each in found
    ]


def migrated(text: str, **options: Any) -> Translation:
    """The translation of a text."""
    return translate(documents(text), MigrateOptions(**options), documents)


@cache
def inputs(*names: str) -> tuple[InputDocument, ...]:
    """The documents of files in ``inputs``."""
    return tuple(each for name in names for each in documents((INPUTS / f"{name}.yaml").read_text(), f"{name}.yaml"))


@cache
def of_inputs(*names: str) -> Translation:
    """The translation of files in ``inputs`` together."""
    return translate(inputs(*names), MigrateOptions(), documents)


def linted(found: Translation) -> LintReport:
    """Return the findings of `kubectl dra lint` for the objects."""
    import yaml

    text = yaml.dump_all(found.objects, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper))
    return lint([ManifestSource(name="migrated.yaml", text=text)], known_from_catalog())


def policy(found: Translation, name: str) -> Any:
    """The spec of a policy."""
    return next(each["spec"] for each in found.policies if each["metadata"]["name"] == name)


def said(found: Translation, field: str) -> list[str]:
    """Return the report entries of a field, selected by the end of its path, with the outcome first."""
    return [f"{note.outcome}: {note.message}" for note in found.notes if note.field.endswith(field)]

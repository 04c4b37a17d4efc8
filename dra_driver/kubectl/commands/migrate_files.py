"""The files that ``kubectl dra migrate --output`` and ``--report`` write."""

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dra_driver.core.errors import ConfigurationError

if TYPE_CHECKING:
    from dra_driver.kubectl.migrate import Translation


def check_folder(folder: Path) -> None:
    """Raises ConfigurationError unless the folder is new or empty: nothing is ever overwritten."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"--output {folder}: expected a new or an empty folder")


def write_folder(folder: Path, found: "Translation") -> None:
    """Writes the objects by kind, each input's workloads under its name, the chart's values and the report.

    Raises ConfigurationError.
    """
    from dra_driver.kubectl.migrate import as_text

    files: dict[str, str] = {}
    groups = {"1-policies.yaml": found.policies, "2-classes.yaml": found.classes, "3-templates.yaml": found.templates}
    for name, objects in groups.items():
        if objects:
            files[name] = "".join(f"---\n{dump(each)}" for each in objects)
    names: dict[str, str] = {}
    for source, value in found.workloads:
        if source not in names:
            stem = "".join(char if char.isalnum() or char in "-_." else "-" for char in Path(source).stem) or "input"
            taken = set(names.values())
            names[source] = next(
                name for name in (f"4-{stem[:80]}.yaml", *(f"4-{stem[:80]}-{n}.yaml" for n in range(2, 100_000)))
                if name not in taken
            )  # fmt: skip
        files[names[source]] = files.get(names[source], "") + f"---\n{dump(value)}"
    if found.values:
        files["values.yaml"] = dump(found.values)
    files["report.txt"] = as_text(found) + "\n"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, text in files.items():
            _write(folder / name, text)
    except OSError as error:
        raise ConfigurationError(f"--output {folder}: {error.strerror or error}") from error


def write_report(path: Path, found: "Translation") -> None:
    """Writes the report, as JSON if the name ends in .json. Raises ConfigurationError."""
    from dra_driver.kubectl.migrate import as_json, as_text

    text = json.dumps(as_json(found), indent=2) if path.suffix == ".json" else as_text(found)
    try:
        _write(path, text + "\n")
    except OSError as error:
        raise ConfigurationError(f"--report {path}: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    """For the owner alone, whatever the umask: environments of containers may have secrets. ``path`` may be a pipe."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            os.fchmod(file.fileno(), 0o600)
        file.write(text)


def dump(value: Any) -> str:
    """One document of YAML, in the order of its keys as they were made."""
    import yaml

    dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=4096)
    return text

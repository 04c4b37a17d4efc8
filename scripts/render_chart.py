"""Renders deploy/chart with Helm's own code, for `make gen`, tests, and clusters that are managed without Helm.

    render_chart.py [--namespace NAME] [--values FILE]... > manifests.yaml

Files given later win, as with `helm template --values`. helm-python-sdk is Helm 4.2.3 as a library, a wheel for Linux
with glibc and for macOS on arm64; where it is missing, HelmMissingError says so. Nothing here asks a cluster.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

try:
    import helm_python
except ImportError:
    helm_python = None

ROOT = Path(__file__).resolve().parent.parent
CHART = Path("deploy/chart")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the CRDs are long
RELEASE = "dra-driver"


class HelmMissingError(RuntimeError):
    """helm-python-sdk is not installed: it has no wheel for this platform, or the environment is older than it."""

    def __init__(self) -> None:
        super().__init__(
            "helm-python-sdk is not installed, so deploy/chart cannot be rendered: run `make clean gen`, or, where it"
            " has no wheel (musl, macOS on x86_64), render on another machine"
        )


class WrongValuesError(ValueError):
    """The values do not fit values.schema.json, or a template refuses them; the message names the field."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Render the chart into manifests for kubectl apply")
    parser.add_argument("--namespace", default=RELEASE, metavar="NAME", help="namespace of the release (%(default)s)")
    parser.add_argument("--values", action="append", default=[], type=Path, metavar="FILE", help="a file of values")
    arguments = parser.parse_args()
    try:
        rendered = render(ROOT / CHART, merged(arguments.values), namespace=arguments.namespace)
    except (HelmMissingError, WrongValuesError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    for name, text in rendered.items():
        print(f"---\n# {name}\n{compact(text)}", end="")
    return 0


def render(chart: Path, values: Mapping[str, Any], *, namespace: str = RELEASE) -> dict[str, str]:
    """Manifests by the name of their template, such as ``rbac.yaml``; templates that render to nothing are left out.

    Raises HelmMissingError and WrongValuesError.
    """
    if helm_python is None:
        raise HelmMissingError
    try:
        with helm_python.Chart.load(chart) as loaded:
            rendered = loaded.render(dict(values), name=RELEASE, namespace=namespace)
    except helm_python.HelmError as error:
        raise WrongValuesError(str(error).strip()) from error
    manifests = {Path(path).name: text for path, text in rendered.items() if path.endswith(".yaml")}
    return {name: text for name, text in sorted(manifests.items()) if _has_objects(text)}


def _has_objects(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return any(line and line != "---" and not line.startswith("#") for line in lines)


def compact(text: str) -> str:
    """Without the empty lines that templates leave behind, where these mean nothing."""
    lines = [line for line in text.splitlines() if line.strip()]
    compacted = "\n".join(lines[1:] if lines[:1] == ["---"] else lines) + "\n"
    before = [each for each in yaml.load_all(text, LOADER) if each is not None]
    return compacted if list(yaml.load_all(compacted, LOADER)) == before else text


def merged(files: Iterable[Path]) -> dict[str, Any]:
    """The values of all files: maps are merged, and of anything else the last file wins."""
    values: dict[str, Any] = {}
    for path in files:
        _merge(values, yaml.safe_load(path.read_text(encoding="utf-8")) or {})
    return values


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(name), dict):
            _merge(values[name], value)
        else:
            values[name] = value


if __name__ == "__main__":
    sys.exit(main())

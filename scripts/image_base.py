"""The packages of the base image, for the SBOM: Debian's from its dpkg status, and a Python that the base built itself;
and the check that all programs and libraries are of the image's architecture.

Reads the saved image (docker-archive), so that no builder has to run it, and no network is needed.
"""

import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

STATUS = "var/lib/dpkg/status"
STATUS_FOLDER = "var/lib/dpkg/status.d/"  # images without a package manager have a file for each package
RELEASES = ("etc/os-release", "usr/lib/os-release")  # the first is a link to the second in Debian
MACHINES = {"amd64": 62, "arm64": 183}  # e_machine: EM_X86_64, EM_AARCH64
PROPERTY = "dra-driver:base-packages"


def add_base_packages(sbom: Path, archive: Path, arch: str) -> str:
    """Add the base's packages to the SBOM, or that they are unknown; return what was added."""
    document = json.loads(sbom.read_text(encoding="utf-8"))
    files, environment = read_image(archive)
    found = components(files, environment, arch)
    count = sum(each["purl"].startswith("pkg:deb/") for each in found)
    said = f"{count} Debian packages by dpkg's status" if count else "unknown: the image has no dpkg status"
    document.setdefault("metadata", {}).setdefault("properties", []).append({"name": PROPERTY, "value": said})
    document["components"] = [*document.get("components", []), *found]
    sbom.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return said


def check_architecture(archive: Path, arch: str) -> None:
    """End the program if a program or library in the image is of another architecture: the base was the wrong one.

    ELF stores the machine in bytes 18 and 19 (System V ABI, gABI chapter 4).
    """
    with tarfile.open(archive) as image:
        (manifest,) = json.load(_member(image, "manifest.json"))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=_member(image, layer), mode="r:*") as content:
                for member in (each for each in content if each.isfile()):
                    head = _member(content, member.name).read(20)
                    if head.startswith(b"\x7fELF") and int.from_bytes(head[18:20], "little") != MACHINES[arch]:
                        raise SystemExit(f"the image is for {arch}, but {member.name} is not: is BASE for {arch}?")


def components(files: Mapping[str, bytes], environment: Mapping[str, str], arch: str) -> list[dict[str, str]]:
    """CycloneDX components, by name. Licences are not in dpkg's status."""
    described = next((_text(files[path]) for path in RELEASES if path in files), "")
    release = dict(line.split("=", 1) for line in described.splitlines() if "=" in line)
    name, version = (release.get(key, "").strip('"') for key in ("ID", "VERSION_ID"))
    distro = f"&distro={quote(f'{name}-{version}')}" if name and version else ""
    found = {}
    texts = [_text(content) for path, content in files.items() if path == STATUS or path.startswith(STATUS_FOLDER)]
    for stanza in (stanza for text in texts for stanza in text.split("\n\n")):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if line[:1].strip() and ": " in line)
        if {"Package", "Version"} <= fields.keys() and fields.get("Status", "ok installed").endswith(" installed"):
            package = f"pkg:deb/{quote(name or 'debian')}/{quote(fields['Package'])}@{quote(fields['Version'])}"
            purl = f"{package}?arch={quote(fields.get('Architecture', arch))}{distro}"
            found[purl] = {"name": fields["Package"], "version": fields["Version"], "purl": purl}
    if python := environment.get("PYTHON_VERSION"):  # the Python project's images build theirs, beside dpkg
        purl = f"pkg:generic/python@{quote(python)}"
        found[purl] = {"name": "python", "version": python, "purl": purl}
    return [{"type": "library", "bom-ref": purl, **each} for purl, each in sorted(found.items())]


def read_image(archive: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    """The files that matter, as the last layer with them left them, and the environment of the image."""
    files: dict[str, bytes] = {}
    with tarfile.open(archive) as image:
        (manifest,) = json.load(_member(image, "manifest.json"))
        config = json.load(_member(image, manifest["Config"]))
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=_member(image, layer), mode="r:*") as content:
                for path, data in _changes(content):
                    if data is None:
                        files = {each: old for each, old in files.items() if not f"{each}/".startswith(f"{path}/")}
                    else:
                        files[path] = data
    environment = dict(each.split("=", 1) for each in config.get("config", {}).get("Env") or () if "=" in each)
    return files, environment


def _changes(layer: tarfile.TarFile) -> Iterator[tuple[str, bytes | None]]:
    """Files of a layer; None for what it removes (``.wh.NAME``; ``.wh..wh..opq`` stands for all that was there)."""
    found = {}
    for member in layer:
        path = member.name.removeprefix("./").lstrip("/")
        folder, _, name = path.rpartition("/")
        if name == ".wh..wh..opq":
            yield folder, None
        elif name.startswith(".wh."):
            yield f"{folder}/{name.removeprefix('.wh.')}".lstrip("/"), None
        elif member.isfile() and (path in {STATUS, *RELEASES} or path.startswith(STATUS_FOLDER)):
            content = layer.extractfile(member)
            found[path] = content.read() if content is not None else b""
    yield from found.items()


def _member(image: tarfile.TarFile, name: str) -> Any:
    found = image.extractfile(name)
    if found is None:
        raise SystemExit(f"{image.name}: {name} is no file, expected a docker-archive")
    return found


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")

"""Build the image of deploy/Dockerfile with podman, buildah or docker, and write into build/image what belongs to it.

- dra-driver-VERSION-ARCHITECTURE.tar: the image, as `docker load`, `podman load` and `ctr images import` read it
- dra-driver-VERSION.cdx.json: its SBOM (CycloneDX 1.6), in two stages: the Python packages with versions, licences and
  what they require, then the Debian packages of the base image by its dpkg status

All packages are downloaded first, by pip with the user's own configuration (mirrors, CAs, passwords), so that nothing
of it gets into the image and the build itself needs no network beyond the base image.

CONTENT=ui builds the image of the chart's web UI, with `dra-driver-ui` in these names; the default is node.

Variables: BUILDER (podman, buildah or docker; else the first that is there), BASE (base image; a release needs one with
a digest), RELEASE (1 for a release; also one where HEAD has the tag vVERSION), IMAGE (name and tag), ARCH (amd64 or
arm64), SOURCE_DATE_EPOCH (times of all files; else the last commit's).

usage: image.py
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import bootstrap
import image_base

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
WHEELS = BUILD / "wheels"
OUT = BUILD / "image"
DOCKERFILE = "deploy/Dockerfile"
BUILDERS = ("podman", "buildah", "docker")
NAMES = {"node": "dra-driver", "ui": "dra-driver-ui"}
"""Names of images by content."""
# The oldest C library that the wheels may ask for: glibc 2.28 is Debian 10's and RHEL 8's.
PLATFORMS = {
    "amd64": ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64"),
    "arm64": ("manylinux_2_28_aarch64", "manylinux2014_aarch64", "manylinux_2_17_aarch64"),
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is built. ``base`` empty is the Dockerfile's own; ``epoch`` in seconds since 1970."""

    builder: str
    image: str
    version: str
    revision: str
    epoch: int
    arch: str
    base: str = ""
    content: str = "node"

    @property
    def archive(self) -> Path:
        return OUT / f"{NAMES[self.content]}-{self.version}-{self.arch}.tar"

    @property
    def sbom(self) -> Path:
        return OUT / f"{NAMES[self.content]}-{self.version}.cdx.json"


def main() -> int:
    order = read_order(os.environ)
    shutil.rmtree(WHEELS, ignore_errors=True)
    OUT.mkdir(parents=True, exist_ok=True)
    order.archive.unlink(missing_ok=True)  # podman and buildah add to an archive that is there
    run(*pip_command(), *download(order.arch, order.content))
    for command in commands(order):
        run(*command)
    image_base.check_architecture(order.archive, order.arch)
    write_sbom(order)
    print(f"base image: {image_base.add_base_packages(order.sbom, order.archive, order.arch)}")
    print(f"{order.image} for {order.arch}: {order.archive.stat().st_size / 2**20:.0f} MiB, {order.archive}")
    print(f"its contents: {order.sbom}")
    return 0


def read_order(environ: Mapping[str, str]) -> Order:
    """The order that the variables and the checkout give. Ends the program with a sentence where one is wrong."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version = tomllib.load(file)["project"]["version"]
    arch = environ.get("ARCH") or host_arch()
    if arch not in PLATFORMS:
        raise SystemExit(f"ARCH is {arch}, expected one of {', '.join(PLATFORMS)}")
    content = environ.get("CONTENT") or "node"
    if content not in NAMES:
        raise SystemExit(f"CONTENT is {content}, expected one of {', '.join(NAMES)}")
    epoch = environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or "0"
    if not epoch.isdecimal():
        raise SystemExit(f"SOURCE_DATE_EPOCH is {epoch!r}, expected seconds since 1970")
    builder, base = find_builder(environ), environ.get("BASE", "")
    release = environ.get("RELEASE", "") not in {"", "0"} or f"v{version}" in git("tag", "--points-at", "HEAD").split()
    check_base(base or default_base(), release=release)
    changed = "-changed" if git("status", "--porcelain") else ""
    return Order(
        builder=builder,
        image=environ.get("IMAGE") or f"{NAMES[content]}:{version}",
        version=version,
        revision=(git("rev-parse", "HEAD") or "unknown") + changed,
        epoch=int(epoch),
        arch=arch,
        base=base,
        content=content,
    )


def default_base() -> str:
    return re.findall(r"^ARG BASE=(\S+)", (ROOT / DOCKERFILE).read_text(encoding="utf-8"), flags=re.M)[0]


def check_base(base: str, *, release: bool) -> None:
    """Refuse a release whose base is a tag, which can move to another image; warn of other builds."""
    if re.search(r"@sha256:[0-9a-f]{64}$", base):
        return
    if release:
        raise SystemExit(f"the base image of a release needs a digest, got {base}: set BASE=IMAGE@sha256:DIGEST")
    print(
        f"warning: {base} is a tag and can move: two builds may differ; BASE=IMAGE@sha256:DIGEST pins it",
        file=sys.stderr,
    )


def find_builder(environ: Mapping[str, str]) -> str:
    wanted = environ.get("BUILDER")
    if wanted and wanted not in BUILDERS:
        raise SystemExit(f"BUILDER is {wanted}, expected one of {', '.join(BUILDERS)}")
    for name in [wanted] if wanted else BUILDERS:
        if shutil.which(name, path=environ.get("PATH")):
            return name
    raise SystemExit(f"to build an image, install one of {', '.join(BUILDERS)}: none is on PATH")


def commands(order: Order) -> list[list[str]]:
    """The commands of the builder: build, then save."""
    arguments = {
        "SOURCE_DATE_EPOCH": str(order.epoch),
        "VERSION": order.version,
        "REVISION": order.revision,
        "CONTENT": order.content,
        **({"BASE": order.base} if order.base else {}),
    }
    pairs = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
    shared = ["--file", DOCKERFILE, "--tag", order.image, "--platform", f"linux/{order.arch}", *pairs]
    if order.builder == "docker":  # BuildKit takes the times of the image itself from SOURCE_DATE_EPOCH
        return [["docker", "build", *shared, "."], ["docker", "save", "--output", str(order.archive), order.image]]
    # `--timestamp` gives the image and each file of its layers that time.
    # buildah 1.28 does not set these two itself, although both FROM lines need them.
    platforms = (f"BUILDPLATFORM=linux/{host_arch()}", f"TARGETPLATFORM=linux/{order.arch}")
    given = [part for each in platforms for part in ("--build-arg", each)]
    build = [order.builder, "build", "--timestamp", str(order.epoch), *given, *shared, "."]
    return [build, [order.builder, "push", order.image, f"docker-archive:{order.archive}:{full_name(order.image)}"]]


def full_name(image: str) -> str:
    """The name that Docker and containerd give to a short one: ``dra-driver:1`` is docker.io/library/dra-driver:1."""
    host, slash, _ = image.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return image
    return f"docker.io/{image if slash else 'library/' + image}"


def download(arch: str, content: str) -> list[str]:
    """pip's arguments: all that the image is made of, for the image's architecture, into the folder of wheels."""
    platforms = [part for name in PLATFORMS[arch] for part in ("--platform", name)]
    files = [part for name in (content, "build") for part in ("--requirement", f"requirements/{name}.txt")]
    target = ["--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp", "--dest", str(WHEELS)]
    return ["download", "--quiet", "--disable-pip-version-check", "--require-hashes", *files, *platforms, *target]


def pip_command() -> list[str]:
    return [sys.executable, f"{bootstrap.PIP_WHEEL}/pip"]


def write_sbom(order: Order) -> None:
    """Install the image's packages here, and let cyclonedx-py list them with the project above them."""
    described, tools = BUILD / "sbom" / "packages", BUILD / "sbom" / "tools"
    offline = ["--no-index", "--find-links", str(WHEELS)] if order.arch == host_arch() else []
    install(described, order.content, *offline)
    install(tools, "sbom")
    settings = ["--output-reproducible", "--spec-version", "1.6", "--mc-type", "application", "--of", "JSON"]
    project = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(order.sbom)]
    lister = str(tools / "bin" / "cyclonedx-py")
    run(lister, "environment", *settings, *project, str(described / "bin" / "python"))


def host_arch() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def install(folder: Path, requirements: str, *options: str) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", "--clear", str(folder))
    target = ["--python", str(folder / "bin" / "python"), "install", "--quiet", "--disable-pip-version-check"]
    run(*pip_command(), *target, *options, "--require-hashes", "--requirement", f"requirements/{requirements}.txt")


def git(*arguments: str) -> str:
    """What git prints; empty outside a repository."""
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def run(*command: str) -> None:
    print("$ " + " ".join(command), flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise SystemExit(f"{Path(command[0]).name} failed, see above")


if __name__ == "__main__":
    raise SystemExit(main())

"""A simulated driver root, and shells that its scripts have to run in."""

import shutil
from pathlib import Path

import pytest

from dra_driver.core.model.gpu import Snapshot
from dra_driver.hardware.gpu.simulated import root as simulated_root
from dra_driver.hardware.gpu.simulated.spec import parse_document

DOCUMENT = """
gpus:
- model: h100-sxm5-80gb
- model: l4-24gb
  minor: 3
- model: b300
  minor: 12
  productName: It's a "GPU" $HOME `id` \\\\n
"""
MIG_DOCUMENT = """
gpus:
- model: l4-24gb
- model: h100-sxm5-80gb
  migEnabled: true
  instances:
  - {profile: 1g.10gb+me, start: 0}
  - {profile: 2g.20gb, start: 2, compute: partial}
  - {profile: 3g.40gb, start: 4}
  - {profile: 1g.10gb, start: 1, compute: none}
- model: h100-sxm5-80gb
  migEnabled: true
  instances: [{profile: 7g.80gb, start: 0}]
"""
SHELLS = [["dash"], ["busybox", "sh"], ["bash", "--posix"]]


def snapshot(text: str = DOCUMENT) -> Snapshot:
    node = parse_document(text, "n")
    return Snapshot(
        driver_version=node.driver_version,
        cuda_driver_version=node.cuda_driver_version,
        gpus=tuple(item.gpu for item in node.gpus),
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    simulated_root.write(folder, snapshot())
    return folder


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest) -> list[str]:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"{request.param[0]} is not installed")
    return list(request.param)

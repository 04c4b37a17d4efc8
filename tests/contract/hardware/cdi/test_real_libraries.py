"""The ELF and linker-cache readers against this machine's own libraries and tools."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from dra_driver.hardware.cdi.elf import read_shared_object
from dra_driver.hardware.driver_root import search

LDCONFIG = shutil.which("ldconfig") or "/sbin/ldconfig"
READELF = shutil.which("readelf")


def system_libraries() -> list[Path]:
    folder = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH") or "")
    return sorted(path for path in folder.glob("lib*.so.*") if path.is_file() and not path.is_symlink())[:60]


@pytest.mark.skipif(READELF is None, reason="needs readelf (package binutils) to compare with")
def test_sonames_agree_with_readelf() -> None:
    libraries = system_libraries()
    assert libraries
    output = subprocess.run(
        [str(READELF), "-d", *map(str, libraries)], capture_output=True, text=True, check=False, timeout=60
    ).stdout
    expected: dict[str, str | None] = {}
    for part in re.split(r"^File: ", output, flags=re.MULTILINE)[1:]:
        soname = re.search(r"\(SONAME\).*\[(.*)\]", part)
        expected[part.splitlines()[0]] = soname[1] if soname else None
    found = {str(path): read_shared_object(str(path)) for path in libraries}
    assert {path: library.soname for path, library in found.items() if library} == {
        path: soname for path, soname in expected.items() if found[path]
    }
    assert sum(library is not None for library in found.values()) > len(libraries) // 2


@pytest.mark.skipif(not Path("/etc/ld.so.cache").exists(), reason="needs a glibc system with a linker cache")
def test_the_linkers_cache_agrees_with_ldconfig() -> None:
    printed = subprocess.run([LDCONFIG, "-p"], capture_output=True, text=True, check=True, timeout=60).stdout
    lines = re.findall(r"^\t(\S+) \((.*?)\) => (\S+)$", printed, flags=re.MULTILINE)
    expected = [(name, path) for name, flags, path in lines if re.search(r"x86-64|AArch64", flags)]
    found = list(search.cache_entries(search.read_cache("/etc/ld.so.cache")))
    assert found
    assert found == expected

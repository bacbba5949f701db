"""Build hook: a wheel gets the native reader where a C compiler is, and is pure where none is."""

import re
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "sources/pyspark_timestream/kafka/client/native"

OLDEST_GLIBC = (2, 17)
"""The oldest that PyPI's tags know for both x86_64 and aarch64."""


def platform_tag(library: Path) -> str:
    """The platform of a wheel with `library`: manylinux, by the newest glibc symbol that it needs.

    PyPI refuses `linux_x86_64`. Without a symbol of glibc (musl) that is the tag all the same.
    """
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    if not needed or not platform.startswith("linux_"):
        return platform
    major, minor = max([OLDEST_GLIBC, *((int(each[0]), int(each[1])) for each in needed)])
    return platform.replace("linux", f"manylinux_{major}_{minor}", 1)


class NativeReaderHook(BuildHookInterface):
    """Compiles `native_reader.c`; a missing compiler is no error."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library; ctypes loads it, so one wheel per platform serves every Python 3."""
        build = runpy.run_path(str(Path(self.root, PACKAGE, "build.py")))
        trouble = build["build_library"]()
        if trouble:
            self.app.display_warning(f"built without the native reader: {trouble}")
            return
        if version == "editable":
            return
        library = build["LIBRARY"]
        build_data["tag"] = f"py3-none-{platform_tag(library)}"
        build_data["pure_python"] = False
        build_data["force_include"][str(library)] = (
            "pyspark_timestream/kafka/client/native/native_reader.so"
        )

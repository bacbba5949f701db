"""Build hook: with a C compiler a wheel gets compiled libraries; without one it is pure."""

import re
import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = "build_native.py"

OLDEST_GLIBC = (2, 17)
"""The oldest glibc that PyPI's tags know for both x86_64 and aarch64."""


def platform_tag(*libraries: Path) -> str:
    """The platform of a wheel: manylinux, by the newest glibc symbol that its libraries need.

    PyPI refuses `linux_x86_64`. Without a symbol of glibc (musl) it is the tag all the same.
    """
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    texts = b" ".join(library.read_bytes() for library in libraries)
    needed = re.findall(rb"GLIBC_(\d+)\.(\d+)", texts)
    if not needed or not platform.startswith("linux_"):
        return platform
    major, minor = max([OLDEST_GLIBC, *((int(each[0]), int(each[1])) for each in needed)])
    return platform.replace("linux", f"manylinux_{major}_{minor}", 1)


class NativeReaderHook(BuildHookInterface):
    """Compiles the native reader and the JSON scanner; a missing compiler is no error."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries; ctypes loads them, so one wheel per platform serves every Python 3."""
        build = runpy.run_path(str(Path(self.root, BUILD)))
        built = []
        for name, source in build["SOURCES"].items():
            library = source.with_suffix(".so")
            trouble = build["build_library"](library, source=source)
            if trouble:
                self.app.display_warning(f"built without {name}: {trouble}")
            else:
                built.append(library)
        if not built or version == "editable":
            return
        build_data["tag"] = f"py3-none-{platform_tag(*built)}"
        build_data["pure_python"] = False
        for library in built:
            place = library.relative_to(Path(self.root, "sources"))
            build_data["force_include"][str(library)] = str(place)

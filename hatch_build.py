"""Build hook: a wheel gets the native gather where a C compiler is, and is pure where none is."""

import runpy
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "sources/pyspark_timestream/kafka/client/native"


class GatherHook(BuildHookInterface):
    """Compiles `gather.c`; a missing compiler is no error."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library; ctypes loads it, so one wheel per platform serves every Python 3."""
        build = runpy.run_path(str(Path(self.root, PACKAGE, "build.py")))
        trouble = build["compiled"]()
        if trouble:
            self.app.display_warning(f"built without the native gather: {trouble}")
            return
        if version == "editable":
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["pure_python"] = False
        library = str(build["LIBRARY"])
        build_data["force_include"][library] = "pyspark_timestream/kafka/client/native/gather.so"

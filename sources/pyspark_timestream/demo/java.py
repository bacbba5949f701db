"""The Java that Spark would take, for Kafka."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from pyspark_timestream.demo.errors import NoDemo

__all__ = ["find_java", "java_version"]

_MIN_VERSION: Final = 17
_ADVICE: Final = (
    f"Spark and Kafka need Java {_MIN_VERSION} or newer: install one (Debian: apt-get install "
    "openjdk-17-jre-headless), or set JAVA_HOME"
)


def find_java() -> str:
    """The path of a `java` that is new enough.

    Raises:
        NoDemo: there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    try:
        printed = subprocess.run(
            [java or "java", "-version"], check=True, capture_output=True, text=True
        ).stderr
    except (OSError, subprocess.CalledProcessError):
        missing = f"JAVA_HOME is {home}, which has no working bin/java" if home else "no Java here"
        raise NoDemo(f"{missing}; {_ADVICE}") from None
    version = java_version(printed)
    if version < _MIN_VERSION:
        raise NoDemo(f"{java} is Java {version}; {_ADVICE}")
    return str(java)


def java_version(printed: str) -> int:
    """The major version in what `java -version` prints: 8 for "1.8.0", 0 where there is none."""
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found[1]) if found else 0

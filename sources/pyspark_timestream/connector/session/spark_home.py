"""A Spark home whose Python processes import the installed PySpark, which is compiled.

Spark puts `SPARK_HOME/python/lib/pyspark.zip` first on the path of every Python process that it
starts, and Python compiles what it imports from a zip in each process again: half a second of a
core or more, and each query starts such a process. The home made here consists of links to the
installed one without that zip. The processes then find the same PySpark, of the same installation,
among the packages of their interpreter, with its bytecode.
"""

import hashlib
import importlib.util
import os
import site
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["SPARK_HOME", "link_spark_home", "use_installed_pyspark"]

SPARK_HOME: Final = "SPARK_HOME"

_LINKED: Final = ("bin", "sbin", "jars", "conf", "data", "examples", "licenses", "RELEASE")
"""Parts of a home beside Python's packages; an installation may lack some of them."""


def use_installed_pyspark(environment: MutableMapping[str, str]) -> None:
    """Set SPARK_HOME in `environment` to `link_spark_home`, unless it is set.

    Nothing is set where PySpark is not an installation with a Spark of its own, where another
    process would not find it, such as by a `sys.path` of this one alone, or where the links cannot
    be made, such as without a writable home directory: Spark then starts as it always does.
    """
    if SPARK_HOME in environment:
        return
    installed, cache = _find_installed_spark(), _find_cache(environment)
    if installed is None or cache is None:
        return
    if installed.parent.resolve() in _list_inherited_paths(environment):
        with suppress(OSError):
            environment[SPARK_HOME] = str(link_spark_home(installed, cache))


def link_spark_home(installed: Path, cache: Path) -> Path:
    """Make, or repair, a directory in `cache` with links to the Spark that is `installed`.

    Several processes may do so at once.

    Raises:
        OSError: a link cannot be made.
    """
    # Each installation has a home of its own, for as long as it is at this place.
    place = hashlib.sha256(os.fsencode(installed)).hexdigest()[:16]
    home = cache / "pyspark-timestream" / f"spark-home-{place}"
    home.mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        link, target = home / name, installed / name
        if link.is_symlink() and (link.readlink() != target or not target.exists()):
            link.unlink(missing_ok=True)
        if target.exists():
            # Another process may have made it since.
            with suppress(FileExistsError):
                link.symlink_to(target)
    return home


def _find_installed_spark() -> Path | None:
    """The directory of the PySpark that would be imported, if Spark is a part of it."""
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    installed = Path(found.origin).parent
    parts = ("bin/spark-submit", "jars", "python/lib/pyspark.zip")
    return installed if all((installed / part).exists() for part in parts) else None


def _list_inherited_paths(environment: Mapping[str, str]) -> set[Path]:
    """The directories that the running interpreter imports from in every process."""
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    places = [*site.getsitepackages(), site.getusersitepackages(), *filter(None, given)]
    return {Path(place).resolve() for place in places}


def _find_cache(environment: Mapping[str, str]) -> Path | None:
    """The user's directory for what can be made again (XDG Base Directory Specification)."""
    # A relative path would make the home depend on where the process was started.
    given, home = environment.get("XDG_CACHE_HOME", ""), environment.get("HOME", "")
    if Path(given).is_absolute():
        return Path(given)
    return Path(home) / ".cache" if Path(home).is_absolute() else None

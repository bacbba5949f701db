"""Kafka's jars, fetched once from Maven Central by the Ivy that PySpark brings."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark_timestream.demo.errors import NoDemo
from pyspark_timestream.demo.kafka_settings import KAFKA_VERSION, LOG_BINDING_VERSION
from pyspark_timestream.demo.progress import run_with_output

__all__ = ["JARS", "fetch_jars", "has_jars", "locked", "user_cache"]

JARS: Final = 45
"""About how many there are; together they have 44 MB."""

_IVY_FILE: Final = f"""<ivy-module version="2.0">
  <info organisation="timestream" module="broker"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{KAFKA_VERSION}"
                conf="default->default"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="{LOG_BINDING_VERSION}"
                conf="default->default"/>
  </dependencies>
</ivy-module>
"""


def user_cache() -> Path:
    """The directory of this user's cache that the demo keeps Kafka in."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timestream"


def has_jars(cache: Path) -> bool:
    """True if nothing has to be fetched."""
    return _place(cache).is_dir()


def fetch_jars(
    cache: Path, java: str = "java", on_line: Callable[[str], None] = lambda _: None
) -> Path:
    """The directory with the broker's jars; they are fetched where they are missing.

    Args:
        cache: a directory that several processes may share.
        java: the Java to run Ivy with.
        on_line: is called with each line that Ivy prints.

    Raises:
        NoDemo: they could not be fetched.
    """
    with locked(cache):
        if not has_jars(cache):
            partial = cache / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            _retrieve(cache, partial, java, on_line)
            partial.rename(_place(cache))
    return _place(cache)


def _place(cache: Path) -> Path:
    return cache / f"kafka-{KAFKA_VERSION}"


def _retrieve(cache: Path, into: Path, java: str, on_line: Callable[[str], None]) -> None:
    recipe, log = cache / "ivy.xml", cache / "ivy.log"
    recipe.write_text(_IVY_FILE)
    command = [java, "-jar", str(_ivy_jar()), "-ivy", str(recipe), "-confs", "default"]
    command += ["-cache", str(cache / "ivy")]
    command += ["-retrieve", f"{into}/[artifact]-[revision].[ext]"]
    with log.open("w") as kept:

        def keep(line: str) -> None:
            kept.write(line)
            on_line(line)

        failed = run_with_output(command, keep)
    if failed or not any(into.glob("kafka_2.13-*.jar")):
        raise NoDemo(
            f"Kafka {KAFKA_VERSION} could not be fetched from Maven Central: check the network "
            f"(behind a proxy set JAVA_TOOL_OPTIONS), then try again; details are in {log}"
        )


def _ivy_jar() -> Path:
    spark = find_spec("pyspark")
    assert spark is not None
    assert spark.origin is not None
    return next((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))


@contextmanager
def locked(cache: Path, name: str = "lock") -> Iterator[None]:
    """Let one process at a time into the block."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

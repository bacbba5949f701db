"""Apicurio Registry from Maven Central: a schema registry that somebody else wrote.

It speaks Confluent's REST interface under a path of its own. It keeps schemas in memory, and ends
with this process. For Protobuf it sends no compiled schemas.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from pyspark_timestream.demo.broker import free_port, locked

__all__ = ["NoRegistry", "serve_apicurio"]

VERSION = "3.0.9"
"""Newer ones need Java 21."""

CACHE = Path(__file__).parents[3] / ".work" / "apicurio"
IVY_FILE = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="timestream" module="registry"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" transitive="false"
                conf="default->default">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
SETTINGS_FILE = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""
"""Maven Central without POMs: the registry's POM has a parent that is missing."""

START_S = 120


class NoRegistry(Exception):
    """It could not be fetched, or did not start."""


@contextmanager
def serve_apicurio() -> Iterator[str]:
    """The address of a registry that runs until the block ends.

    Raises:
        NoRegistry: it could not be fetched, or did not start; the text says where to look.
    """
    place = fetch()
    port = free_port()
    url, log = f"http://127.0.0.1:{port}/apis/ccompat/v7", CACHE / f"log-{os.getpid()}"
    command = ["java", "-Xmx512m", *os.environ.get("JVM_FLAGS", "").split()]
    command += [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    command += ["-jar", str(place / f"apicurio-registry-app-{VERSION}-runner.jar")]
    with log.open("w") as kept:
        process = subprocess.Popen(
            command,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=kept,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent if sys.platform == "linux" else None,
        )
    try:
        wait_for(f"{url}/subjects", process, log)
        yield url
    finally:
        process.kill()
        process.wait()
        log.unlink(missing_ok=True)


def fetch() -> Path:
    """The registry's directory; it is fetched on first use (109 MB), by the Ivy of PySpark."""
    place = CACHE / VERSION
    with locked(CACHE):
        if not place.is_dir():
            spark = find_spec("pyspark")
            assert spark is not None
            assert spark.origin is not None
            ivy = next((Path(spark.origin).parent / "jars").glob("ivy-*.jar"))
            recipe, partial = CACHE / "ivy.xml", CACHE / "partial"
            shutil.rmtree(partial, ignore_errors=True)
            recipe.write_text(IVY_FILE)
            settings = CACHE / "ivysettings.xml"
            settings.write_text(SETTINGS_FILE)
            command = ["java", "-jar", str(ivy), "-ivy", str(recipe), "-settings", str(settings)]
            command += ["-confs", "default", "-cache", str(partial)]
            with (CACHE / "ivy.log").open("w") as kept:
                subprocess.run(command, stdout=kept, stderr=subprocess.STDOUT, check=False)
            packed = next(partial.rglob("*.tar.gz"), None)
            if packed is None:
                raise NoRegistry(
                    f"Apicurio Registry {VERSION} could not be fetched from Maven Central; details "
                    f"are in {CACHE / 'ivy.log'}"
                )
            with tarfile.open(packed) as archive:
                # Of Python 3.11 and 3.12, only the newer patch releases have filters.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(partial / "unpacked")
            (partial / "unpacked").rename(place)
            # The archive is as large again.
            shutil.rmtree(partial)
    return place


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the registry answers."""
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and process.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.2)
    raise NoRegistry(f"Apicurio Registry did not start: {log.read_text()[-2000:]}")


def end_with_parent() -> None:
    """Have the kernel end this process with its parent."""
    import ctypes

    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)

"""A Kafka image for a Docker engine that reaches no registry, made of this machine's files.

The Java runtime of this machine, a static busybox as shell, and the broker's jars from Maven
Central. It reads the same environment as Apache's own image: `KAFKA_FOO_BAR` is `foo.bar`.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from kafka_process import CACHE, image_lock, kafka_jars

from pyspark_timestream.demo.broker import KAFKA_VERSION, LOG4J_FILE

# The modules of the JDK that a broker needs; without jlink the whole runtime is copied.
_MODULES = "java.se,jdk.management,jdk.unsupported,jdk.crypto.ec,jdk.zipfs"

# The jars' own native libraries (zstd, lz4) link to these, which stand beside libc.
_BESIDE_LIBC = ("libpthread.so.0", "libdl.so.2", "librt.so.1")

_RUN = """#!/bin/sh
# KAFKA_* variables become properties; the storage is formatted once and outlives a kill.
set -e
mkdir -p /data /tmp
{
  env | grep '^KAFKA_' | grep -v '^KAFKA_[A-Z_]*_OPTS=' | while IFS= read -r line; do
    name=${line%%=*}
    echo "$(echo "${name#KAFKA_}" | tr 'A-Z_' 'a-z.')=${line#*=}"
  done
  echo log.dirs=/data
} > /server.properties
java="/jre/bin/java ${KAFKA_HEAP_OPTS:--Xmx512m} $KAFKA_JVM_PERFORMANCE_OPTS"
java="$java -Dlog4j2.configurationFile=/log4j2.properties"
[ -f /data/meta.properties ] ||
  $java -cp '/jars/*' kafka.tools.StorageTool format -t "$CLUSTER_ID" -c /server.properties
exec $java -cp '/jars/*' kafka.Kafka /server.properties
"""


def local_image(client: Any) -> str:
    """The name of the image in this engine, built if it is not there yet.

    Args:
        client: A `docker.DockerClient`.

    Raises:
        OSError: Something that the image is made of is missing; the text says what.
    """
    name = f"timestream-kafka:{KAFKA_VERSION}-{_content()}"
    with image_lock():
        if not client.images.list(name):
            _build(client, *name.split(":"))
    return name


def _content() -> str:
    """A hash of the image's inputs, so that a change of one makes a new image."""
    java = subprocess.run(["java", "-version"], check=True, capture_output=True).stderr
    parts = [Path(__file__).read_bytes(), LOG4J_FILE.encode(), java]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def _build(client: Any, repository: str, tag: str) -> None:
    jars = kafka_jars()
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        runtime = _runtime(Path(work) / "jre")
        archive = Path(work) / "image.tar"
        with tarfile.open(archive, "w") as image:
            _add(image, runtime, "jre")
            _add(image, jars, "jars")
            for library in sorted(_libraries(runtime)):
                _add(image, library, str(library).lstrip("/"))
            _add_shell(image)
            _add_text(image, "log4j2.properties", LOG4J_FILE)
            _add_text(image, "run", _RUN, mode=0o755)
        changes = ['CMD ["/run"]', "ENV PATH=/bin:/jre/bin"]
        client.api.import_image_from_file(str(archive), repository, tag, changes=changes)


def _runtime(into: Path) -> Path:
    """A Java runtime: with a JDK only the modules that a broker needs, else all of it."""
    home = Path(os.path.realpath(shutil.which("java") or "java")).parent.parent
    jlink = home / "bin" / "jlink"
    if jlink.exists() and (home / "jmods").is_dir():
        command = [jlink, "--add-modules", _MODULES, "--strip-debug", "--no-header-files"]
        command += ["--no-man-pages", "--output", into]
        subprocess.run(command, check=True, capture_output=True)
        # Unlike an installed one it comes without the archive of its own classes.
        subprocess.run([into / "bin" / "java", "-Xshare:dump"], check=True, capture_output=True)
    else:
        # Debian keeps the settings under /etc and links to them.
        ignored = shutil.ignore_patterns("jmods", "src.zip", "docs", "man")
        shutil.copytree(home, into, ignore=ignored, ignore_dangling_symlinks=True)
    return into


def _libraries(runtime: Path) -> Iterator[Path]:
    """The outside shared libraries that the runtime and the jars' native parts link to."""
    binaries = [runtime / "bin" / "java", *(runtime / "lib").rglob("*.so")]
    done = subprocess.run(["ldd", *binaries], capture_output=True, text=True, check=False)
    places = set(re.findall(r"^\s+(?:\S+ => )?(/\S+)", done.stdout, re.MULTILINE))
    outside = [Path(place) for place in places if not place.startswith(str(runtime))]
    yield from outside
    for place in outside:
        if place.name == "libc.so.6":
            yield from (there for name in _BESIDE_LIBC if (there := place.parent / name).exists())


def _add_shell(image: tarfile.TarFile) -> None:
    shell = shutil.which("busybox")
    if shell is None:
        raise OSError("no busybox for the image's shell (Debian: apt-get install busybox-static)")
    _add(image, Path(shell), "bin/busybox")
    for name in ("sh", "env", "grep", "tr", "mkdir"):
        link = tarfile.TarInfo(f"bin/{name}")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        image.addfile(link)


def _add(image: tarfile.TarFile, place: Path, name: str) -> None:
    def rooted(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.mode |= 0o444
        return entry

    image.add(os.path.realpath(place), name, filter=rooted)


def _add_text(image: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text), mode
    image.addfile(entry, io.BytesIO(text.encode()))


def image_to_run(client: Any) -> str:
    """Apache's image where the engine has it or a registry answers, else one built here."""
    import docker.errors
    import requests.exceptions

    public = os.environ.get("KAFKA_IMAGE", f"apache/kafka:{KAFKA_VERSION}")
    with suppress(docker.errors.DockerException, requests.exceptions.RequestException):
        if client.images.list(public):
            return public
        # The engine asks, so its mirrors and proxies count.
        client.images.get_registry_data(public)
        return public
    return local_image(client)

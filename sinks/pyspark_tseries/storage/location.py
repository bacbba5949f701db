"""Access the location of a store: a local directory, or a prefix in an object store.

A local file survives a power loss once it is synced, and its name once its directory is synced
(semantics 25). Syncing several at once costs little more than one. Arrow accesses object stores,
with the same options as Delta. They lack locks and renaming, so code that needs these checks
`is_local`.

Lock files between the processes of one host only save work: the check in the log keeps commits
correct on any number of hosts. A process that waits for the commit lock gives up once the holder
has been silent for `MAX_SILENCE_S`, and commits without the lock. A holder that writes a large
batch keeps the lock by touching the file, its heartbeat. The kernel releases the lock of a killed
process.
"""

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import pathlib
import random
import re
import secrets
import shutil
import stat
import tempfile
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from pyspark_timestream.core.declarations import decode_file_uri
from pyspark_timestream.core.processes import begin_in_forks
from pyspark_timestream.errors import OptionError, compose_message
from pyspark_tseries.errors import UnusableStore

MAX_SYNC_THREADS: Final = 16
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
"""File systems without hard links (FAT, some network and FUSE mounts) return these codes."""

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_DIRECTORY_SYNC_UNSUPPORTED: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def sync(paths: Iterable[str]) -> None:
    """Return once these files, and the names in these directories, survive a power loss.

    Raises:
        OSError: one is missing, or could not be written to the disk.
    """
    unique_paths = list(dict.fromkeys(paths))
    begun: list[tuple[str, Future[None]]] = []
    # Perhaps no thread is left, or the interpreter is ending.
    with contextlib.suppress(RuntimeError):
        threads = _sync_threads(os.getpid())
        begun.extend((path, threads.submit(_sync, path)) for path in unique_paths[1:])
    for path in [*unique_paths[:1], *unique_paths[1 + len(begun) :]]:
        _sync(path)
    # Sync here the files that no thread has begun: waiting for a thread takes longer.
    for path, done in reversed(begun):
        if done.cancel():
            _sync(path)
    for _, done in begun:
        if not done.cancelled():
            done.result()


@functools.lru_cache(maxsize=1)
def _sync_threads(pid: int) -> ThreadPoolExecutor:
    """Return the threads that sync, one pool for each `pid`: a fork has none of its parent's."""
    return ThreadPoolExecutor(MAX_SYNC_THREADS, thread_name_prefix=f"tseries-sync-{pid}")


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync directories, and need no sync.
        if error.errno not in _DIRECTORY_SYNC_UNSUPPORTED or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def list_directories(root: str, files: Sequence[str]) -> list[str]:
    """Return the directories above each of `files`, which lie in `root`, up to `root` itself."""
    directories: dict[str, None] = {}
    for file in files:
        directory = os.path.dirname(file)
        while directory not in directories and len(directory) >= len(root):
            directories[directory] = None
            directory = os.path.dirname(directory)
    return list(directories)


def move_exclusively(path: str, to: str) -> None:
    """Move a file atomically, unless there is one at `to`.

    Raises:
        FileExistsError: there is a file at `to`; nothing was changed.
        OSError: the file cannot be moved; with the code EMLINK if the file system has neither
            hard links nor exclusive renaming.
    """
    try:
        os.link(path, to)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _rename_exclusively(path, to)
    else:
        # Removing the first name sets the file's change time: a log entry is visible from then on.
        os.remove(path)


def _rename_exclusively(path: str, to: str) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        code = errno.ENOSYS
    elif not rename(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(to), _RENAME_NOREPLACE):
        return
    else:
        code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS):
        raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), to)
    raise OSError(code, os.strerror(code), to)


def make_directories(path: str) -> None:
    """Make a directory and its parents so that they survive a power loss.

    All parents on its file system are synced, even if they existed: the process that made them may
    have died before it synced them. Directories that this user may not read cannot be synced.
    """
    os.makedirs(path, exist_ok=True)
    names = [path]
    device = os.stat(path).st_dev
    while (parent := os.path.dirname(path)) != path and os.stat(parent).st_dev == device:
        names.append(path := parent)
    sync(name for name in names if os.access(name, os.R_OK))


EVENT_FILE_PATH: Final = re.compile(
    r"kind=\w+/(?P<first>\d{10,})-((?P<last>\d{10,})-)?(?P<id>[0-9a-f]{16})([._]\d{4,})?[.]parquet"
)
"""Matches the paths of this package's event files: their commits, an id, and a number."""

RANDOM_BITS: Final = 42
"""The number of random bits in the id in a file's name; the higher bits are the store's tag."""


def tagged_id(table_id: str, random_bits: int) -> int:
    """Return an id for new files: the tag of their store, then RANDOM_BITS random bits."""
    return _store_tag(table_id) << RANDOM_BITS | random_bits


def _store_tag(table_id: str) -> int:
    return zlib.crc32(table_id.encode()) >> 12


def bears_tag(path: str, table_id: str) -> bool:
    """Return whether `path`, relative to the store, names an event file of this very store."""
    match = EVENT_FILE_PATH.fullmatch(path)
    return match is not None and int(match["id"], 16) >> RANDOM_BITS == _store_tag(table_id)


OptionPairs = tuple[tuple[str, str], ...]

_URI: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")
_S3_URI: Final = re.compile(r"s3a?://(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]*)/(?P<prefix>.*)")
_S3_PREFIX: Final = re.compile(r"[A-Za-z0-9_./=@:+,' -]+")

_UNSAFE_IN_PATH: Final = re.compile(r"[%:\\\x00-\x1f]")
"""These characters make a path a URI, an escape, or ambiguous."""

_OPTION_ALIASES: Final = {
    "AWS_DEFAULT_REGION": "AWS_REGION",
    "AWS_ENDPOINT": "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3": "AWS_ENDPOINT_URL",
}
_SECRET_OPTIONS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_ENVIRONMENT_OPTIONS: Final = ("AWS_REGION", "AWS_ENDPOINT_URL")
STORAGE_OPTIONS: Final = (*_SECRET_OPTIONS, "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP")
"""The options of an object store; missing ones come from the environment."""

MAX_SERVER_COPY_BYTES: Final = 2 * 1024**3
"""Let the object store itself copy files up to this size. Amazon's limit for one request is 5 GB;
this is about the size that it copies in a minute."""


def local_path(location: str) -> str:
    """Return the local path that a path or `file:` URI names; raise ValueError for any other.

    >>> local_path("file:///tmp/a%20store"), local_path("/tmp/a store")
    ('/tmp/a store', '/tmp/a store')
    """
    path = _decode_uri(location)
    if not path.strip():
        raise ValueError("an empty text does not name a directory")
    if "%" in path:
        # delta-rs 1.6 takes '%' for an escape, both in a path and in a URI.
        raise ValueError(
            f"the path {path!r} has a '%', which libraries of Delta tables take for an escape; "
            "accepted: a path without it; next step: choose another directory"
        )
    if (expanded := os.path.expanduser(path)) != path:
        # A directory named '~' would be made here, and 'rm -r ~' would not remove that one.
        raise ValueError(
            f"the path {path!r} begins with a home directory, which only a shell finds by '~'; "
            f"accepted: the whole path; next step: give {expanded!r}, or './{path}' if a directory "
            "has this name"
        )
    # Half a character stands for a byte that is not UTF-8.
    if "\\" in path or any(char < " " or "\ud800" <= char <= "\udfff" for char in path):
        raise ValueError(f"a directory named {path!r} cannot be a Delta table")
    return path


def _decode_uri(location: str) -> str:
    uri = _URI.match(location)
    if uri is None:
        return location
    if uri["scheme"].lower() != "file":
        raise ValueError(
            f"this version of tseries cannot open '{uri['scheme']}:' stores yet; accepted: a "
            "path of this machine, such as a mount, or s3://bucket/prefix; next step: give one"
        )
    return decode_file_uri(location)


def is_inside_store(path: str) -> bool:
    """Return whether `path`, a file's name in a log, stays in the store's directory.

    >>> is_inside_store("kind=event/part-0.parquet")
    True
    >>> is_inside_store("kind=event/%2e%2e/part-0.parquet")
    False
    """
    names = path.split("/")
    return not (_UNSAFE_IN_PATH.search(path) or {"", ".", ".."} & set(names))


def normalize_location(text: str) -> str:
    """Return the local path, or `s3:` URI without a final slash, of `text`; or raise ValueError.

    >>> normalize_location("s3a://bucket/trips/"), normalize_location("file:///tmp/trips")
    ('s3://bucket/trips', '/tmp/trips')
    """
    uri = _URI.match(text)
    if uri is None or uri["scheme"].lower() not in ("s3", "s3a"):
        return local_path(text)
    s3_uri = _S3_URI.fullmatch(uri["scheme"].lower() + text[uri.end("scheme") :])
    prefix = s3_uri["prefix"].rstrip("/") if s3_uri else ""
    if s3_uri is None or not prefix:
        raise ValueError("an s3: URI names a bucket and a prefix in it: s3://bucket/prefix")
    if not _S3_PREFIX.fullmatch(prefix) or {"", ".", ".."} & set(prefix.split("/")):
        # Delta, Arrow and Amazon each escape other characters differently.
        raise ValueError(
            "a prefix consists of letters A-Z, digits, spaces and _.=@:+,'- in parts between "
            "single '/'"
        )
    return f"s3://{s3_uri['bucket']}/{prefix}"


def parse_location(
    location: "str | os.PathLike[str] | Location", options: Mapping[str, str] | None = None
) -> "Location":
    """Return the location that a path or URI names, with `options`; return a Location unchanged.

    A relative path becomes absolute. The options are among `STORAGE_OPTIONS`; case does not matter.

    Raises:
        ValueError: there is no such location.
        OptionError: the options do not fit the location; the error shows none of their values.
    """
    if isinstance(location, Location):
        return location
    if not isinstance(location, str | os.PathLike):
        raise ValueError(compose_message(f"{location!r} is not a path", "a text or a pathlib.Path"))
    root = normalize_location(os.fspath(location))
    try:
        pairs = _normalize_options(options or {})
        if pairs and not root.startswith("s3://"):
            raise ValueError(f"a local path needs no {pairs[0][0]}")
    except ValueError as error:
        raise OptionError(
            "storageOptions",
            str(error),
            ", ".join(STORAGE_OPTIONS),
            "correct it, or leave it out for what the environment says",
        ) from None
    return Location(root, pairs) if root.startswith("s3://") else Location(os.path.abspath(root))


def _normalize_options(options: Mapping[str, str]) -> OptionPairs:
    """Return sorted options with names in capitals; raise ValueError if they are not valid."""
    normalized: dict[str, str] = {}
    if not isinstance(options, Mapping):
        raise ValueError("storage options are a mapping of names to texts")
    for key, value in options.items():
        if not isinstance(key, str) or not isinstance(value, str):
            # The value may be a secret.
            raise ValueError(f"storage option {key!r} is not a text with a text as its value")
        name = _OPTION_ALIASES.get(key.upper(), key.upper())
        if name not in STORAGE_OPTIONS:
            raise ValueError(f"there is no storage option '{key}'")
        if normalized.setdefault(name, value) != value:
            raise ValueError(f"storage option '{name}' is given twice, with different values")
    if ("AWS_ACCESS_KEY_ID" in normalized) != ("AWS_SECRET_ACCESS_KEY" in normalized):
        raise ValueError("one of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY needs the other")
    if normalized.get("AWS_ALLOW_HTTP", "true").lower() not in ("true", "false"):
        raise ValueError("AWS_ALLOW_HTTP is neither 'true' nor 'false'")
    endpoint = normalized.get("AWS_ENDPOINT_URL", "https://")
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError("AWS_ENDPOINT_URL is not an http: or https: URL")
    if endpoint.startswith("http:") and normalized.get("AWS_ALLOW_HTTP", "").lower() != "true":
        raise ValueError("an AWS_ENDPOINT_URL without encryption needs AWS_ALLOW_HTTP=true")
    if "AWS_ENDPOINT_URL" in normalized:
        normalized.setdefault("AWS_REGION", "us-east-1")
    return tuple(sorted(normalized.items()))


LOG_FOLDER: Final = "_delta_log"
"""The folder of a Delta table's log."""

CLAIM_FOLDER: Final = ("_tseries", "staging", "claim")
"""This folder is there while a backup is made into a directory or prefix."""


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a store, from `parse_location`; pickle works, and its repr hides secrets.

    Attributes:
        root: an absolute local path, or `s3://bucket/prefix`.
        options: the options of an object store, as Delta takes them.
    """

    root: str
    options: OptionPairs = field(default=(), repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a directory, which has locks, renaming, and nanosecond times."""
        return not self.root.startswith("s3://")

    def is_away(self) -> bool:
        """Return whether a local path has no store: it was moved, or its mount point is empty."""
        return self.is_local and not os.path.isdir(self.file(LOG_FOLDER))

    def require_outside_tables(self) -> None:
        """Raise UnusableStore if a store here would lie in a Delta table, such as a store.

        The table's VACUUM sees nothing in a directory with a name that begins with `_` or `.`.
        """
        path = os.path.realpath(self.root) if self.is_local else self.file()
        while not os.path.basename(path).startswith(("_", ".")):
            inner = path
            path = os.path.dirname(path)
            if path in ("", inner):
                break
            if self._has_folder(os.path.join(path, LOG_FOLDER)):
                table = path if self.is_local else f"s3://{path}"
                raise UnusableStore(
                    f"'{self.root}' lies in the Delta table '{table}', whose VACUUM would remove "
                    "all files of a store there",
                    "a path that is in no table or other store",
                    f"choose one beside it, such as '{table}-{os.path.basename(self.root)}'",
                )

    def require_unclaimed(self) -> None:
        """Raise UnusableStore if a backup is being made here: its log would replace a store's."""
        if self._has_folder(self.file(*CLAIM_FOLDER)):
            raise UnusableStore(
                f"'{self.root}' is the target of a backup that goes on, or was ended before its "
                "copy was a store",
                "a directory without a backup that is not complete",
                "wait for the backup, or remove what is in the directory if it was ended; or "
                "create the store at another path",
            )

    def _has_folder(self, path: str) -> bool:
        """Return whether there is a directory at `path`; False if the storage does not say."""
        if self.is_local:
            return os.path.isdir(path)
        from pyarrow.fs import FileType

        with contextlib.suppress(OSError):
            return self.filesystem.get_file_info(path).type == FileType.Directory  # type: ignore[no-any-return]
        return False

    @property
    def uri(self) -> str:
        """The location as a URI, for Delta."""
        # A bare path could look like a URI of another kind.
        return pathlib.Path(self.root).as_uri() if self.is_local else self.root

    @property
    def storage_options(self) -> dict[str, str] | None:
        """The options for Delta."""
        return dict(self.options) if self.options else None

    @property
    def filesystem(self) -> Any:
        """The file system for Arrow; None stands for the local one."""
        return None if self.is_local else _s3_filesystem(self.options)

    def redact(self, text: str) -> str:
        """Return `text`, which may quote the options, without their secrets."""
        for name, value in self.options:
            if name in _SECRET_OPTIONS and value:
                text = text.replace(value, "[hidden]")
        return text

    def file(self, *names: str) -> str:
        """Return the path of a file of the store, for the methods below and for Arrow."""
        return os.path.join(self.root if self.is_local else self.root[5:], *names)

    def read(self, path: str) -> pa.NativeFile:
        """Open a file to read from.

        Raises:
            OSError: it cannot be read; FileNotFoundError: it is missing.
        """
        return pa.OSFile(path) if self.is_local else self.filesystem.open_input_file(path)

    def read_whole(self, path: str) -> bytes:
        """Return the content of a file; raise as `read` does."""
        with self.read(path) as file:
            return bytes(file.read())

    def write(self, path: str) -> pa.NativeFile:
        """Open a file to write to, and make its directory; it exists once it is closed."""
        if not self.is_local:
            return self.filesystem.open_output_stream(path)
        self.make_directories(os.path.dirname(path))
        return pa.OSFile(path, "wb")

    def write_whole(self, path: str, content: bytes | bytearray, *, new: bool = False) -> None:
        """Write a small file at once, and make its directory; with `new` none may be there yet."""
        if not self.is_local:
            with self.write(path) as file:
                file.write(content)
            return
        # Python's and Arrow's file objects take two to four times the time of these calls.
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if new else os.O_TRUNC)
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            self.make_directories(os.path.dirname(path))
            descriptor = os.open(path, flags, 0o666)
        try:
            unwritten = memoryview(content)
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]
        finally:
            os.close(descriptor)

    def replace_whole(self, path: str, content: bytes) -> None:
        """Write a small file, perhaps in place of another; it survives a power loss, and is whole.

        So a reader finds either of the two, whenever this process is killed.
        """
        if not self.is_local:
            self.write_whole(path, content)
            return
        draft = self.file("_tseries", "staging", f"{secrets.token_hex(8)}.draft")
        self.write_whole(draft, content)
        self.make_directories(os.path.dirname(path))
        sync([draft])
        os.replace(draft, path)
        sync(list_directories(self.root, [path]))

    def make_directories(self, path: str, *, new: bool = False) -> None:
        """Make a directory below the store's directory, but never the store's directory itself.

        With `new` it must not be there yet.

        If the directory of a store that was moved away appeared again, the store could not be moved
        back. New directories get the rights of the store's directory, so that a group that may
        write there may also write below.

        Raises:
            FileNotFoundError: the store's directory is missing.
            FileExistsError: with `new`, `path` is there.
            OSError: the directory cannot be made.
        """
        if not self.is_local or (os.path.isdir(path) and not new):
            return
        directory = self.root
        for name in os.path.relpath(path, self.root).split(os.sep):
            directory = os.path.join(directory, name)
            try:
                os.mkdir(directory)
                self._share(directory)
            except FileExistsError:
                if new and directory == path:
                    raise

    def _share(self, path: str) -> None:
        """Give a new file or directory the rights of the store's directory."""
        root_mode = os.stat(self.root).st_mode
        mode = os.stat(path).st_mode
        rights = root_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if stat.S_ISDIR(mode):
            rights |= root_mode & (stat.S_ISGID | stat.S_IXGRP | stat.S_IXOTH)
        rights |= root_mode & (stat.S_IRGRP | stat.S_IROTH)
        if mode | rights != mode:
            # Fails on a file system without rights, and for another user's file.
            with contextlib.suppress(OSError):
                os.chmod(path, stat.S_IMODE(mode | rights))

    def open_lock(self, name: str) -> int | None:
        """Open the local lock file `name` of this host's processes; return None if that fails.

        A lock only saves work, so a process that may not open the file goes on without it.
        """
        if self.is_away():
            return None
        with contextlib.suppress(OSError):
            path = self.lock_path(name)
            try:
                with contextlib.suppress(FileNotFoundError):
                    return os.open(path, os.O_RDWR)
                try:
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
                except FileExistsError:
                    return os.open(path, os.O_RDWR)
            except PermissionError:
                return os.open(path, os.O_RDONLY)
            if self.is_local:
                self._share(path)
            return descriptor
        return None

    def copy(self, path: str, to: str) -> None:
        """Hard-link or copy an immutable file."""
        if not self.is_local:
            if self.size(path) <= MAX_SERVER_COPY_BYTES:
                return self.filesystem.copy_file(path, to)  # type: ignore[no-any-return]
            with self.read(path) as source, self.write(to) as sink:
                return shutil.copyfileobj(source, sink, 16 * 1024 * 1024)
        self.make_directories(os.path.dirname(to))
        try:
            os.link(path, to)
        except OSError:  # No hard links, another file system, or a missing file.
            shutil.copyfile(path, to)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes; raise FileNotFoundError if it is missing."""
        if self.is_local:
            return os.path.getsize(path)
        info = self.filesystem.get_file_info(path)
        if info.size is None:
            raise FileNotFoundError(path)
        return int(info.size)

    def identity(self, path: str) -> tuple[int, int] | None:
        """Return a value that differs for a later file of the same name; None if it is missing."""
        if self.is_local:
            try:
                entry = os.stat(path)
            except FileNotFoundError:
                return None
            return entry.st_ino, entry.st_mtime_ns
        info = self.filesystem.get_file_info(path)
        return None if info.size is None else (int(info.size), int(info.mtime_ns))

    def clock_us(self) -> int | None:
        """Return the time of the storage's own clock, in microseconds; None if unknown.

        A local disk has the kernel's clock, which a process cannot fake.
        """
        path = self.file("_tseries", "clock")
        try:
            if self.is_local:
                descriptor = self.open_lock("clock")
                if descriptor is None:
                    return None
                os.close(descriptor)
                os.utime(path)
            else:
                self.write_whole(path, b"")
            identity = self.identity(path)
        except OSError:
            return None
        return None if identity is None else identity[1] // 1000

    def has(self, path: str, size: int) -> bool:
        """Return whether there is a file of this size."""
        try:
            return self.size(path) == size
        except FileNotFoundError:
            return False

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files; ignore missing ones."""
        remove = os.remove if self.is_local else self.filesystem.delete_file
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                remove(path)

    def discard(self, paths: Iterable[str]) -> None:
        """Remove unnamed files; ignore errors, and leave the remaining files to maintenance.

        Usually another error is being raised, which says what is wrong.
        """
        for path in paths:
            with contextlib.suppress(OSError):
                self.remove([path])

    def list_files(self, directory: str) -> Iterator[tuple[str, int]]:
        """Yield each file in `directory`, which need not exist, and its time in nanoseconds."""
        if not self.is_local:
            selector = _file_selector(directory)
            for info in self.filesystem.get_file_info(selector):
                if info.is_file:
                    yield info.path, int(info.mtime_ns)
        elif os.path.isdir(directory):
            for entry in os.scandir(directory):
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_file():
                        yield entry.path, entry.stat().st_mtime_ns

    def list_folders(self, directory: str) -> list[str]:
        """Return the names of the folders in `directory`, which need not exist."""
        if not self.is_local:
            infos = self.filesystem.get_file_info(_file_selector(directory))
            return [info.base_name for info in infos if not info.is_file]
        if not os.path.isdir(directory):
            return []
        return [entry.name for entry in os.scandir(directory) if entry.is_dir()]

    def lock_path(self, name: str) -> str:
        """Return the path of the local lock file `name`, shared by this host's processes."""
        if not self.is_local:
            digest = hashlib.sha256(self.root.encode()).hexdigest()[:32]
            return os.path.join(tempfile.gettempdir(), f"tseries-{os.getuid()}-{digest}-{name}")
        self.make_directories(self.file("_tseries"))
        return self.file("_tseries", name)


def _file_selector(directory: str) -> Any:
    from pyarrow.fs import FileSelector

    return FileSelector(directory, allow_not_found=True)


@functools.lru_cache(maxsize=16)
def _s3_filesystem(options: OptionPairs) -> Any:
    # Import late: this starts the AWS library and its threads.
    from pyarrow.fs import S3FileSystem

    # Read the environment variables that Delta reads; Arrow would know only some of them.
    settings = {
        name: os.environ[name]
        for name in (*_OPTION_ALIASES, *_ENVIRONMENT_OPTIONS)
        if name in os.environ
    }
    settings = {
        **{_OPTION_ALIASES.get(name, name): value for name, value in settings.items()},
        **dict(options),
    }
    endpoint = settings.get("AWS_ENDPOINT_URL")
    return S3FileSystem(
        access_key=settings.get("AWS_ACCESS_KEY_ID"),
        secret_key=settings.get("AWS_SECRET_ACCESS_KEY"),
        session_token=settings.get("AWS_SESSION_TOKEN"),
        region=settings.get("AWS_REGION"),
        scheme=None if endpoint is None else urlsplit(endpoint).scheme,
        endpoint_override=None if endpoint is None else endpoint.split("://", 1)[1].rstrip("/"),
        connect_timeout=10,
        request_timeout=60,
    )


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of events in the directory of a store; the log need not name it.

    Attributes:
        path: the path relative to the store.
        full: the full path.
        modified_ns: the time of its last change.
    """

    path: str
    full: str
    modified_ns: int


def list_event_files(location: Location) -> Iterator[StoredFile]:
    """Yield all files in the folders of events and edits."""
    for kind in ("event", "edit"):
        for full, modified_ns in list(location.list_files(location.file(f"kind={kind}"))):
            yield StoredFile(f"kind={kind}/{os.path.basename(full)}", full, modified_ns)


_Kept = TypeVar("_Kept")


class KeptByStore(Generic[_Kept]):
    """Keeps one object for each store, by its location; the store used last is at the end.

    A forked process begins with nothing, because another thread of its parent may have held a lock.

    Args:
        make: makes the object to keep for a store.
        max_stores: beyond this many, forget the least recently used store; None: keep all.
    """

    def __init__(self, make: Callable[[Location], _Kept], max_stores: int | None = None) -> None:
        self._make = make
        self._max_stores = max_stores
        self.begin_child()
        begin_in_forks(self)

    def begin_child(self) -> None:
        """Start afresh in a forked process."""
        self.lock = threading.Lock()
        self.stores: OrderedDict[Location, _Kept] = OrderedDict()

    def use(self, location: Location) -> _Kept:
        """Return the kept object of a store."""
        with self.lock:
            if location not in self.stores:
                self.stores[location] = self._make(location)
            self.stores.move_to_end(location)
            while self._max_stores is not None and len(self.stores) > self._max_stores:
                self.stores.popitem(last=False)
            return self.stores[location]


_COMMIT_LOCK_FILE: Final = "commit.lock"

MAX_SILENCE_S: Final = 10.0
"""A client waits this long for a holder without a heartbeat, then commits without the lock."""

MAX_HEARTBEATS: Final = 360
"""The heartbeat ends after 15 minutes, at four beats in `MAX_SILENCE_S`: a client may hang."""


@contextlib.contextmanager
def lock_commits(location: Location) -> Iterator[None]:
    """Let the clients of one host commit in turn."""
    if not location.is_local:
        yield  # Clients of an object store are seldom on one host, so the log decides.
        return
    descriptor = location.open_lock(_COMMIT_LOCK_FILE)
    if descriptor is None:
        yield  # The commit itself reports a broken disk or a missing store.
        return
    try:
        last_beat, patience = None, 0.0
        while not try_lock(descriptor):
            # Wait while the holder beats: small batches that did not wait would win every race
            # against a large one.
            if last_beat != (last_beat := os.fstat(descriptor).st_mtime_ns):
                patience = time.monotonic() + MAX_SILENCE_S
            if time.monotonic() >= patience:
                break
            time.sleep(random.uniform(0.001, 0.005))
        try:
            yield
        finally:
            # Unlock explicitly: after a fork, the child has the file open too, so that closing it
            # here would not release the lock.
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def heartbeat(location: Location) -> Iterator[None]:
    """Show waiting clients that the holder of the commit lock is working."""
    over = threading.Event()
    if location.is_local:
        path = location.file("_tseries", _COMMIT_LOCK_FILE)
        with contextlib.suppress(RuntimeError):  # No thread is left, or the interpreter is ending.
            threading.Thread(target=_beat, args=(path, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _beat(path: str, over: threading.Event) -> None:
    with contextlib.suppress(OSError):
        for _ in range(MAX_HEARTBEATS):
            if over.wait(MAX_SILENCE_S / 4):
                return
            os.utime(path)


@contextlib.contextmanager
def exclusive(location: Location, name: str, *, is_needed: bool = True) -> Iterator[int | None]:
    """Hold the lock `name`; yield its descriptor, or None if another process holds it.

    A process that inherits the descriptor also holds the lock until it ends. If the lock's file
    cannot be opened, and the lock is not needed, yield -1.

    Raises:
        OSError: the lock's file cannot be opened.
    """
    descriptor = location.open_lock(name)
    if descriptor is None and not is_needed:
        yield -1
        return
    if descriptor is None:
        # Opening the file without a fallback raises the error that `open_lock` suppressed.
        descriptor = os.open(location.lock_path(name), os.O_RDWR | os.O_CREAT, 0o644)
    with open(descriptor, "rb"):
        yield descriptor if try_lock(descriptor) else None


def try_lock(descriptor: int) -> bool:
    """Take the lock; return whether it is now held. Closing the file releases it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # The file system has no locks, so the log decides.
    return True

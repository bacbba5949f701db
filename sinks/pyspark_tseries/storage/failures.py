"""Explain failures of the disk, mount or file system under a store, with the next step.

Storage code raises `OSError`, and Delta an error that quotes one. Retries inside the package see
these plain errors. At the end of a call from a user or from Spark, `explained_failures` turns them
into `StorageFailed`, into `NoSuchStore` if the store's directory is missing, or into
`UnusableStore` if an object store refuses a request.
"""

import contextlib
import errno
import grp
import os
import pwd
import re
import shlex
import shutil
import stat
from collections.abc import Iterator
from typing import Final

from pyspark_timestream.errors import walk_causes
from pyspark_tseries.errors import NoSuchStore, StorageFailed, TseriesError, UnusableStore
from pyspark_tseries.storage.location import Location

_QUOTED_CODE: Final = re.compile(r"\((?:os error|errno) (\d+)\)|\[(?:os error|[Ee]rrno) (\d+)\]")
"""Matches the operating system's error number as Rust, Python and Arrow quote it in a text."""

_QUOTED_PATH: Final = re.compile(r"'(/[^'\n]+)'|\"(/[^\"\n]+)\"|\b(?:at|path:?|file:?) (/[^\s,:]+)")

_RIGHTS: Final = (errno.EACCES, errno.EPERM)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_AWAY: Final = (
    *(errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EREMOTEIO),
    *(errno.ENODEV, errno.ENXIO, errno.EHOSTUNREACH, errno.ENETUNREACH),
)
_NEXT_STEPS: Final = {
    errno.EROFS: "mount the file system writable",
    errno.EIO: "look for errors of the disk (dmesg)",
    errno.EMLINK: "put the store on a file system that has hard links or exclusive renaming: on "
    "this one two writers could overwrite each other's commits",
    errno.EMFILE: "allow the process more open files (ulimit -n), then do it again",
    errno.ENFILE: "allow the machine more open files (sysctl fs.file-max), then do it again",
    errno.ENOMEM: "give the machine more memory, then do it again",
    errno.EFBIG: "allow larger files (ulimit -f), then do it again",
    errno.ENAMETOOLONG: "choose a shorter path",
    errno.EISDIR: "remove that directory, then do it again",
    errno.ELOOP: "remove the symbolic link that leads back to itself, then do it again",
    errno.ENOTDIR: "choose a path made only of directories",
    errno.EBUSY: "end what uses the file, then do it again",
    **dict.fromkeys(_AWAY, "bring the mount or its server back, then do it again"),
    **dict.fromkeys(_FULL, ""),
    **dict.fromkeys(_RIGHTS, ""),
}
"""Next steps by code; for full disks and missing rights they depend on the place."""

_NEXT_STEPS_IN_STORES: Final = {
    errno.EROFS: ", or only read the store here",
    errno.EIO: ", then see what is broken with: python -m pyspark_tseries verify {root}",
}
"""The end of the next step if the file is of the store, and not of a checkpoint, for example."""

_COLOUR_CODES: Final = re.compile("\x1b\\[[0-9;]*m")
"""The colours of Delta's errors."""


@contextlib.contextmanager
def explained_failures(location: Location | None, *, is_new: bool = False) -> Iterator[None]:
    """Explain a failure of the storage under the store at `location`, if it is known.

    Raises:
        NoSuchStore: the store's directory existed, and is missing now.
        UnusableStore: the object store refused a request, or cannot be reached.
        StorageFailed: the storage failed in another way.
    """
    try:
        yield
    except Exception as error:
        explained = explain_failure(location, error, is_new=is_new)
        if explained is None:
            raise
        raise explained from error


def explain_failure(
    location: Location | None, error: Exception, *, is_new: bool = False, behind_named: bool = False
) -> TseriesError | None:
    """Return the storage failure behind `error`; None if there is none, or it is named already.

    With `behind_named` return it even if `error` is an error of this package that names another
    problem, such as a busy store.
    """
    is_named = isinstance(error, TseriesError) and not isinstance(error, UnusableStore)
    if not behind_named and (is_named or isinstance(error, NoSuchStore | StorageFailed)):
        return None
    if location is not None and not location.is_local:
        # An answer of the store has no number of this machine's operating system.
        is_answer = isinstance(error, OSError) and error.errno is None
        return unreachable_error(location, "read or written", error) if is_answer else None
    code = find_code(error)
    may_be_away = location is not None and not is_new and code in (None, errno.ENOENT, *_AWAY)
    if location is not None and may_be_away and location.is_away():
        return away_error(location)
    if code not in _NEXT_STEPS:
        return None
    path = _find_path(error) or (location.root if location is not None else None)
    return _storage_error(code, path, location)


def away_error(location: Location) -> NoSuchStore:
    """Return the error of an open store that is no longer at its location."""
    return NoSuchStore(
        f"the store '{location.root}' is not there any more: it was moved or removed, or its "
        "mount is away",
        "the store where it was opened; nothing was changed",
        "bring it back to that path, then do it again",
    )


def unreachable_error(location: Location, action: str, error: Exception) -> UnusableStore:
    """Return an error without the secrets that `error`, the storage's answer, may contain.

    `action` says what cannot be done to the store, such as "opened".
    """
    reason = " ".join(_COLOUR_CODES.sub("", location.redact(str(error))).split())
    accepted, options = "a directory that can be written", ""
    if not location.is_local:
        accepted = "a prefix in a bucket that exists, and credentials that may read and write it"
        options = " and storageOptions (storage_options=, --storage-option)"
    return UnusableStore(
        f"'{location.root}' cannot be {action} as a store: {reason[:500]}",
        accepted,
        f"check the path{options}",
    )


def find_code(error: BaseException) -> int | None:
    """Return the operating system's error number that `error` or one of its causes reports."""
    for cause in walk_causes(error):
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno
        quoted = _QUOTED_CODE.search(str(cause))
        if quoted is not None:
            return int(quoted[1] or quoted[2])
    return None


def _find_path(error: BaseException) -> str | None:
    for cause in walk_causes(error):
        if isinstance(cause, OSError) and isinstance(cause.filename, str):
            return cause.filename
    for cause in walk_causes(error):
        quoted = None if isinstance(cause, TseriesError) else _QUOTED_PATH.search(str(cause))
        if quoted is not None:
            return str(next(filter(None, quoted.groups())))
    return None


def _storage_error(code: int, path: str | None, location: Location | None) -> StorageFailed:
    root = location.root if location is not None else path
    is_within = location is not None and path is not None and path.startswith(f"{root}/")
    if code in _RIGHTS:
        # A backup's target lies outside: rights in the store would not help.
        next_step = _explain_rights(path, root if is_within or path == root else None)
    elif code in _FULL:
        next_step = _explain_full(path)
    elif code == errno.ENOTDIR and os.path.isfile(nearest := _find_nearest(path) or ""):
        next_step = f"'{nearest}' is a file: {_NEXT_STEPS[code]}"
    else:
        next_step = _NEXT_STEPS[code]
    store = f" of the store '{root}'" if is_within else ""
    if is_within or (location is not None and path == root):
        next_step += _NEXT_STEPS_IN_STORES.get(code, "").format(root=shlex.quote(str(root)))
    where = f"'{path}'{store}" if path is not None else "a file"
    problem = f"{where} cannot be read or written: {os.strerror(code)} ({errno.errorcode[code]})"
    error = StorageFailed(problem, None, next_step)
    error.path = path
    error.code = code
    return error


def _explain_full(path: str | None) -> str:
    nearest = _find_nearest(path)
    if not nearest:
        return "free space on the file system, then do it again"
    mount = nearest
    while not os.path.ismount(mount):
        mount = os.path.dirname(mount)
    free = shutil.disk_usage(nearest).free
    return (
        f"free space on the file system mounted at '{mount}', which has {free:,} bytes left (or "
        "raise the user's quota), then do it again"
    )


def _explain_rights(path: str | None, root: str | None) -> str:
    nearest = _find_nearest(path)
    if not nearest:
        return "give this user the right to read and write there, then do it again"
    if os.path.isfile(nearest) and os.access(nearest, os.R_OK):
        nearest = os.path.dirname(nearest)  # The directory decides who may make and remove files.
    entry = os.stat(nearest)
    remedy = (
        "allow this user to read and write there"
        if root is None or not os.path.exists(root)  # A store that is to be made has no group yet.
        else f"give the group the store with: chmod -R g+rwXs {shlex.quote(root)} (what is made in "
        "it later inherits that)"
    )
    return (
        f"'{nearest}' is {stat.filemode(entry.st_mode)} of user {_name_user(entry.st_uid)} and "
        f"group {_name_group(entry.st_gid)}, and this process is user {_name_user(os.geteuid())}: "
        f"let its owner {remedy}, or run as its owner"
    )


def _find_nearest(path: str | None) -> str | None:
    """Return the path, or the nearest directory above it that exists."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _name_user(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return str(uid)


def _name_group(gid: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(gid).gr_name
    return str(gid)

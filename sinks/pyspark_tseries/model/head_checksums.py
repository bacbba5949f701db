"""The checksums of a head file: of the whole file, and of its note alone, which is read more often.

Arrow checks nothing of what it reads. So a head file's metadata has a key of ours whose value is
written once all else is there: a mark, eight hexadecimal digits for the file with zeros in their
place, and eight for the note. Arrow writes the metadata at both ends of a file. Files of earlier
versions have no such key, and are not checked.
"""

import zlib
from collections.abc import Mapping
from typing import Final

__all__ = ["check_file", "check_note", "room_for_sums", "seal_file"]

_KEY: Final = b"tseries.crc32"
_MARK: Final = b"\x1etseries.crc32\x1e"
"""JSON escapes its first byte, so that no note holds it."""

_DIGITS: Final = 8
_ROOM: Final = b"0" * _DIGITS


def room_for_sums(note: bytes) -> dict[bytes, bytes]:
    """The key for a file whose note is `note`, with zeros instead of the file's checksum."""
    return {_KEY: _MARK + _ROOM + _hexadecimal(zlib.crc32(note))}


def seal_file(content: bytearray) -> None:
    """Writes its checksum into a file with the key of room_for_sums."""
    digits = _hexadecimal(zlib.crc32(content))
    for at in _places(content):
        content[at : at + _DIGITS] = digits


def check_file(content: bytes) -> bool:
    """Whether a file has a checksum; raises ValueError where it is not as it was written."""
    places = _places(content)
    if not places:
        return False
    crc, whole, done = 0, memoryview(content), 0
    for at in places:
        crc = zlib.crc32(_ROOM, zlib.crc32(whole[done:at], crc))
        done = at + _DIGITS
    crc = zlib.crc32(whole[done:], crc)
    if any(content[at : at + _DIGITS] != _hexadecimal(crc) for at in places):
        raise ValueError("its checksum is another one")
    return True


def check_note(metadata: Mapping[bytes, bytes], note: bytes) -> None:
    """Raises ValueError where a file's `note` is not as it was written."""
    sums = metadata.get(_KEY)
    if sums is not None and sums[-_DIGITS:] != _hexadecimal(zlib.crc32(note)):
        raise ValueError("its note has another checksum")


def _hexadecimal(crc: int) -> bytes:
    return b"%08x" % crc


def _places(content: bytes | bytearray) -> list[int]:
    """Where the file's checksum stands: before the rows, and after them."""
    first, last = content.find(_MARK), content.rfind(_MARK)
    return [at + len(_MARK) for at in sorted({first, last} - {-1})]

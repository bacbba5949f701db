"""Checksums of a head file: one of the whole file, one of the commit metadata, read more often.

Arrow does not verify what it reads. So the schema metadata of a head file has a key of ours, filled
in last: a mark, eight hexadecimal digits for the file (computed with zeros in their place), and
eight for the commit metadata. Arrow writes the schema at both ends of a file. Files of earlier
versions lack the key and are not checked.
"""

import zlib
from collections.abc import Mapping
from typing import Final

__all__ = [
    "CHECKSUM_KEYS",
    "checksum_placeholder",
    "fill_in_checksum",
    "verify_file",
    "verify_metadata",
]

_KEY: Final = b"tseries.crc32"
CHECKSUM_KEYS: Final = frozenset([_KEY])
"""The keys of this module in a file's schema metadata."""

_MARK: Final = b"\x1etseries.crc32\x1e"
"""JSON escapes its first byte, so commit metadata cannot contain it."""

_CHECKSUM_DIGITS: Final = 8
_ZEROS: Final = b"0" * _CHECKSUM_DIGITS


def checksum_placeholder(metadata: bytes) -> dict[bytes, bytes]:
    """The key for a file with this commit metadata, with zeros as the file's checksum."""
    return {_KEY: _MARK + _ZEROS + _format_crc(zlib.crc32(metadata))}


def fill_in_checksum(content: bytearray) -> None:
    """Write its checksum into a file with the key of `checksum_placeholder`."""
    digits = _format_crc(zlib.crc32(content))
    for at in _checksum_offsets(content):
        content[at : at + _CHECKSUM_DIGITS] = digits


def verify_file(content: bytes) -> bool:
    """True if a file has a checksum; raises ValueError if it has changed since it was written."""
    offsets = _checksum_offsets(content)
    if not offsets:
        return False
    crc, whole, done = 0, memoryview(content), 0
    for at in offsets:
        crc = zlib.crc32(_ZEROS, zlib.crc32(whole[done:at], crc))
        done = at + _CHECKSUM_DIGITS
    crc = zlib.crc32(whole[done:], crc)
    if any(content[at : at + _CHECKSUM_DIGITS] != _format_crc(crc) for at in offsets):
        raise ValueError("its checksum is another one")
    return True


def verify_metadata(schema_metadata: Mapping[bytes, bytes], metadata: bytes) -> None:
    """Raise ValueError if commit metadata has changed since it was written."""
    sums = schema_metadata.get(_KEY)
    if sums is not None and sums[-_CHECKSUM_DIGITS:] != _format_crc(zlib.crc32(metadata)):
        raise ValueError("the checksum of its commit metadata is wrong")


def _format_crc(crc: int) -> bytes:
    return b"%08x" % crc


def _checksum_offsets(content: bytes | bytearray) -> list[int]:
    """The offsets of the file's checksum: before the rows, and after them."""
    first, last = content.find(_MARK), content.rfind(_MARK)
    return [at + len(_MARK) for at in sorted({first, last} - {-1})]

"""A proxy on this machine that changes what a Kafka broker answers to fetch requests.

Clients that bootstrap from it stay with it: in every answer it replaces the broker's address with
its own. It spoils only the answers to fetches.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

FETCH = 1
OFFSET_SIZE, SIZE_ENDS, CRC_AT, COUNTED_FROM, LEAST = 8, 12, 17, 21, 61
"""Positions in a batch of records, and its least size; the checksum counts from COUNTED_FROM."""

Spoil = Callable[[bytes], bytes]


class SpoilingProxy:
    """Passes bytes on between clients and one broker.

    Args:
        upstream: host:port of the broker.
        spoil: turns a fetch's answer, after its frame, into the client's answer.
    """

    def __init__(self, upstream: str, spoil: Spoil) -> None:
        host, port = upstream.rsplit(":", 1)
        self._upstream, self._spoil, self.spoilt = (host, int(port)), spoil, 0
        self._listener = socket.create_server((host, 0))
        own_port = self._listener.getsockname()[1]
        self.bootstrap = f"{host}:{own_port}"
        # Every version of a metadata answer has a broker's port behind its host.
        self._theirs = host.encode() + struct.pack(">i", int(port))
        self._ours = host.encode() + struct.pack(">i", own_port)
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """End every connection."""
        _end(self._listener, *self._open)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                try:
                    broker = socket.create_connection(self._upstream)
                except OSError:
                    client.close()
                    continue
                self._open.append(broker)
                fetches: set[bytes] = set()
                ask = (client, broker, partial(self._asked, fetches))
                answer = (broker, client, partial(self._answered, fetches))
                for ends in (ask, answer):
                    threading.Thread(target=_pass_on, args=ends, daemon=True).start()

    def _asked(self, fetches: set[bytes], request: bytes) -> bytes:
        (api,) = struct.unpack_from(">h", request)
        if api == FETCH:
            fetches.add(request[4:8])
        return request

    def _answered(self, fetches: set[bytes], answer: bytes) -> bytes:
        number, content = answer[:4], answer[4:]
        if number not in fetches:
            return number + content.replace(self._theirs, self._ours)
        fetches.discard(number)
        spoilt = self._spoil(content)
        self.spoilt += spoilt != content
        return number + spoilt


def _pass_on(source: socket.socket, to: socket.socket, made: Callable[[bytes], bytes]) -> None:
    """Send each frame as `made` changes it, until one side ends; then end the other.

    A broken frame is dropped: with its own size it would pass for a whole one.
    """
    try:
        with suppress(OSError), source.makefile("rb") as stream:
            while len(size := stream.read(4)) == 4:
                (announced,) = struct.unpack(">i", size)
                whole = stream.read(announced)
                if len(whole) < announced:
                    break
                frame = made(whole)
                to.sendall(struct.pack(">i", len(frame)) + frame)
    finally:
        _end(source, to)


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        # This wakes up a thread that waits for it, and a close would not.
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def spoiling_proxy(upstream: str, spoil: Spoil) -> Iterator[SpoilingProxy]:
    """A proxy that lives until the end of the `with` block."""
    proxy = SpoilingProxy(upstream, spoil)
    try:
        yield proxy
    finally:
        proxy.close()


# -- how to spoil an answer ------------------------------------------------------------------------


def batches(content: bytes) -> list[tuple[int, int]]:
    """Where the first run of record batches in a fetch's answer begins and ends."""
    at, found = 0, []
    while at + LEAST <= len(content):
        offset, size, epoch, magic = struct.unpack_from(">qiib", content, at)
        end = at + 12 + size
        if magic == 2 and 0 <= offset < 2**32 and -1 <= epoch < 2**16 and at + LEAST <= end:
            if end > len(content):
                break
            found.append((at, end))
            at = end
        elif found:
            break
        else:
            at += 1
    return found


def sometimes(dice: random.Random, spoil: Spoil) -> Spoil:
    """`spoil` every other time: a repeated request may get the right answer."""
    return lambda content: spoil(content) if dice.random() < 0.5 else content


def with_wrong_checksums(dice: random.Random, content: bytes) -> bytes:
    """Change some bytes of a batch's checksum or of the bytes that it covers."""
    found = batches(content)
    if not found:
        return content
    start, end = dice.choice(found)
    return _overwritten(dice, content, start + CRC_AT, end)


def garbled(dice: random.Random, content: bytes) -> bytes:
    """Something in the records or their batch's description is nonsense, or the last part missing.

    The fields around the batches stay as they were: librdkafka 2.16 releases a partition twice if
    an answer ends in the fields behind its records, which no broker's log can cause. So do a
    batch's first offset and its format, which no checksum covers: where the format is nonsense
    librdkafka aborts the process (`rd_slice_narrow_copy`). It is nonsense too where a batch's size
    leads into the middle of another one, so a wrong size is too small for any, or too large for the
    answer.
    """
    found = batches(content)
    if not found:
        return content
    start, end = dice.choice(found)
    which = dice.randrange(5)
    if which == 0:
        size = dice.choice([dice.randrange(LEAST - SIZE_ENDS), dice.randrange(len(content), 2**31)])
        at = start + OFFSET_SIZE
        return content[:at] + struct.pack(">i", size) + content[start + SIZE_ENDS :]
    if which == 1:
        return _cut(content, found[0][0], dice.randrange(start + OFFSET_SIZE, end), found[-1][1])
    start += CRC_AT
    if which == 2:
        # Codec and counts; then the first record's own sizes.
        return _overwritten(dice, content, start, min(start + LEAST, end))
    if which == 3:
        at = dice.randrange(start, end)
        return content[:at] + dice.randbytes(end - at) + content[end:]
    return _overwritten(dice, content, start, end)


def _cut(content: bytes, start: int, at: int, end: int) -> bytes:
    """The batches from `start` to `end` stop at `at`, and their size says so."""
    size = _varint(end - start + 1)
    if not content[:start].endswith(size):
        return content
    return (
        content[: start - len(size)] + _varint(at - start + 1) + content[start:at] + content[end:]
    )


def _varint(number: int) -> bytes:
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + _varint(high) if high else bytes([low])


def _overwritten(dice: random.Random, content: bytes, start: int, end: int) -> bytes:
    at = dice.randrange(start, end)
    to = min(end, at + dice.choice([1, 1, 2, 4, 50]))
    others = bytes(each ^ dice.randint(1, 255) for each in content[at:to])
    return content[:at] + others + content[to:]

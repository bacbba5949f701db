"""Random bytes of Protobuf messages: as writers write them, and as nobody should."""

import struct

NUMBERS = (0, 1, 2, 5, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
DOUBLES = (0.0, -0.0, 1.5, 1e39, 1e300, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "a", "é", "日本", "\0", "x" * 130)
VARINT_TYPES = {3, 4, 5, 8, 13, 14, 17, 18}
FIXED64_TYPES = {1, 6, 16}


def varint(value, pad=0):
    """A varint; `pad` bytes longer than it need be."""
    groups = [value & 127]
    while value := value >> 7:
        groups.append(value & 127)
    groups += [0] * pad
    return bytes([group | 128 for group in groups[:-1]] + [groups[-1]])


def tag(number, wire_type, pad=0):
    return varint(number << 3 | wire_type, pad)


def delimited(data):
    return varint(len(data)) + data


def _wire_type(found):
    if found.type in VARINT_TYPES:
        return 0
    if found.type in FIXED64_TYPES:
        return 1
    return {2: 5, 7: 5, 15: 5, 10: 3}.get(found.type, 2)


def _scalar(rng, found):
    if found.type in VARINT_TYPES:
        # Mostly small, so that numbers of enums are known and dates exist.
        number = rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(13)
        return varint(number, pad=rng.random() < 0.05)
    if found.type == 1:
        return struct.pack("<d", rng.choice(DOUBLES))
    if found.type == 2:
        return struct.pack("<f", rng.choice((0.0, -0.0, 1.5, float("nan"), float("inf"))))
    return rng.randbytes(8 if _wire_type(found) == 1 else 4)


def _content(rng, found, depth):
    if found.type == found.TYPE_MESSAGE:
        if found.message_type.full_name == "google.protobuf.Timestamp" and rng.random() < 0.7:
            seconds = rng.choice((0, 1, 253402300799, 253402300800, 1_700_000_000))
            return b"\x08" + varint(seconds) + b"\x10" + varint(rng.choice((0, 1999, 10**9)))
        return message(rng, found.message_type, depth - 1) if depth else b""
    if found.type == found.TYPE_STRING:
        return rng.choice(TEXTS).encode()
    if found.type == found.TYPE_BYTES:
        return rng.randbytes(rng.choice((0, 1, 20)))
    return b"".join(_scalar(rng, found) for _ in range(rng.randrange(4)))


def message(rng, descriptor, depth=3):
    """The bytes of a message; about one of thirty fields is odd."""
    fields = list(descriptor.fields)
    parts = []
    for _ in range(rng.randrange(6)):
        odd = rng.random()
        if odd < 0.06 or not fields:
            parts.append(_unknown(rng))
            continue
        found = rng.choice(fields)
        wire_type = _wire_type(found)
        packable = found.is_repeated and wire_type not in (2, 3)
        if packable and rng.random() < 0.5:
            wire_type = 2
        if odd > 0.97:
            wire_type = rng.choice((0, 1, 2, 5))
        parts.append(tag(found.number, wire_type))
        parts.append(_value(rng, found, wire_type, depth))
    return b"".join(parts)


def _value(rng, found, wire_type, depth):
    if wire_type == _wire_type(found) != 2 and wire_type != 3:
        return _scalar(rng, found)
    if wire_type == 3:
        inner = message(rng, found.message_type, depth - 1) if depth else b""
        return inner + tag(found.number, 4)
    if wire_type == 2:
        return delimited(_content(rng, found, depth))
    return {0: b"\5", 1: b"\1" * 8, 5: b"\1" * 4}[wire_type]


def _unknown(rng):
    number = rng.choice((15, 900, 2**29 - 1))
    return rng.choice(
        (
            tag(number, 0) + varint(rng.choice(NUMBERS)),
            tag(number, 1) + b"12345678",
            tag(number, 2) + delimited(b"abc"),
            tag(number, 5) + b"1234",
            tag(number, 3) + tag(1, 0) + b"\7" + tag(number, 4),
        )
    )


def spoil(rng, data):
    """Damage the bytes of a message, so that it is malformed or another one."""
    how = rng.randrange(7)
    place = rng.randrange(len(data) + 1)
    if how == 0:
        return data[:place]
    if how == 1:
        return data[:place] + rng.randbytes(1) + data[place + 1 :]
    if how == 2:
        return data + rng.randbytes(rng.randrange(1, 12))
    if how == 3:
        return data[:place] + b"\xff" * rng.randrange(1, 11) + b"\1" + data[place:]
    return data + rng.choice(HOSTILE)


HOSTILE = (
    b"\0\0",  # field 0
    b"\x0e",  # wire type 6
    b"\x0c",  # the end of a group that never began
    b"\x0b",  # a group without an end
    b"\x0b\x14",  # a group with the end of another
    tag(1, 0),  # only a tag
    tag(1, 0) + b"\xff" * 10,  # a varint without an end
    tag(1, 0) + b"\xff" * 9 + b"\2",  # a varint of 65 bits
    tag(900, 0) + b"\xff" * 9 + b"\2",
    tag(900, 0, pad=4) + b"\1",  # a tag of six bytes
    b"\x80\x80\x80\x80\x80\x01\1",  # a field number beyond 32 bits
    b"\xc8\x80\x80\x80\x10\1",  # a tag of 33 bits
    tag(900, 2) + varint(2**64 - 10),  # a length that wraps around
    tag(900, 2) + varint(2**64 - 9) + b"\x08\1\x08\1\x08\1",
    tag(1, 2) + varint(2**64 - 10),
    tag(1, 2) + varint(2**31) + b"x",
    tag(900, 2) + varint(2**31 - 1) + b"x",
    tag(2, 2) + varint(2**63),
    *(tag(number, 2) + delimited(b"\xff\xfe") for number in range(1, 8)),  # no UTF-8
    *(tag(number, 2) + delimited(b"\0" * 7) for number in range(1, 8)),  # ragged
    b"".join(tag(900, 3) for _ in range(200)),  # deep groups
)

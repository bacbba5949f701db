"""Reads the rows of a query's state from the files of its checkpoint, without a Spark session.

Spark's default state store keeps a map for each partition of an operator: `N.delta` has the changes
of batch N - 1, `N.snapshot` the whole map after it. Both files hold pairs of a key and a value, in
the layout of Spark's rows in memory, each after its size, in blocks of LZ4. This module keeps only
the keys, with the time that each waits for (`explanation.OperatorState`).

With RocksDB, `N.changelog` has the same pairs, but its keys begin with a version, and `N.zip` names
the tables of RocksDB that make up the map; their newest entries are its keys. `N.zip` also has the
number of keys as Spark counts it; a map with another number of keys is not shown. Other layouts
(another codec, several states of one operator, tables of a later RocksDB) are not read.
`QueryState.note` says what is not known.
"""

import json
import os
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_timestream.commands.explanation import MAX_TIMES, OperatorState, locate_due_time
from pyspark_timestream.core.checkpoint import is_instant
from pyspark_timestream.report import format_count

MAX_STATE_BYTES: Final = 4_000_000
"""Read at most this many bytes of a query's state at once: about a second of a core."""

_MAX_DELTAS: Final = 20
"""If there are more deltas to read, reading a snapshot and the deltas after it is less work."""

_MAX_BLOCK: Final = 1 << 25
"""Spark writes no larger block."""

_MAX_TABLE: Final = 1 << 27
"""Bytes of a table's blocks and keys once unpacked: a few packed bytes may unpack to any number."""

_PREFIX: Final = "spark.sql.streaming.stateStore."
_PROVIDER: Final = f"{_PREFIX}providerClass"
_OWN_MAP: Final = "HDFSBackedStateStoreProvider"
_ROCKSDB: Final = "RocksDBStateStoreProvider"
_NEEDED: Final = {
    f"{_PREFIX}compression.codec": "lz4",
    f"{_PREFIX}encodingFormat": "unsaferow",
    f"{_PREFIX}rowChecksum.enabled": "false",
}
"""With these settings, state files have the layout that this module reads."""

_JOIN_STORE_SUFFIX: Final = "-keyWithIndexToValue"
"""A join has four stores; the two with this ending have each of its rows once."""

_ASK_SPARK: Final = "`python -m pyspark_timestream explain --state` counts them, with a Spark"

_BATCHES: Final = {_OWN_MAP: ".delta", _ROCKSDB: ".changelog"}
_SNAPSHOTS: Final = {_OWN_MAP: ".snapshot", _ROCKSDB: ".zip"}
"""How the names of files end, by provider."""

_HEADER: Final = struct.Struct("<8sBIII")
_STORED, _LZ4 = 0x10, 0x20
_SIZE: Final = struct.Struct(">i")
_WORD: Final = struct.Struct("<q")

Due = tuple[int, ...]
"""The place in a key of the time that it waits for, as `locate_due_time` returns it."""

_Keys = dict[bytes, int | None]


class _StateUnreadable(ValueError):
    """Raised for state that cannot be counted here; the text says why."""


@dataclass(frozen=True, slots=True)
class QueryState:
    """The state of a query.

    Attributes:
        operators: the state of each operator that could be read.
        batch: the state was counted after this batch; None: it was not read yet.
        note: why something is not known; empty if all is known.
    """

    operators: tuple[OperatorState, ...] = ()
    batch: int | None = None
    note: str = ""


class _Store(NamedTuple):
    operator: str
    folder: Path
    name: str
    partitions: int
    has_prefix: bool
    """Whether its keys in RocksDB begin with a prefix for Spark's look-ups."""

    def partition_folder(self, partition: int) -> Path:
        """Return the directory of one of its partitions."""
        folder = self.folder / str(partition)
        return folder if self.name == "default" else folder / self.name


@dataclass(slots=True)
class _PartitionKeys:
    """The keys of a partition of a store, after `version` batches."""

    version: int = 0
    keys: _Keys = field(default_factory=dict)


class StateFiles:
    """Reads the news in a checkpoint's state at each call of `read`; it writes nothing.

    Args:
        root: the checkpoint.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._partitions: dict[Path, _PartitionKeys] = {}
        self._bytes_left = 0
        self._provider = _OWN_MAP
        self.state = QueryState()

    def read(self, batch: int, settings: Mapping[str, str]) -> bool:
        """Read the state after a batch, and return whether `state` has changed.

        The offset log has noted `settings` for that batch.
        """
        before = self.state
        if before.batch == batch:
            return False
        self._bytes_left = MAX_STATE_BYTES
        self.state = self._read(batch, settings)
        return self.state != before

    def _read(self, batch: int, settings: Mapping[str, str]) -> QueryState:
        if not (self._root / "state").is_dir():
            return QueryState((), batch)
        self._provider = settings.get(_PROVIDER, _OWN_MAP).rpartition(".")[2]
        obstacle = _find_obstacle(self._provider, settings)
        if obstacle is not None:
            return QueryState((), batch, f"the rows of state are not known: {obstacle}")
        operators: list[OperatorState] = []
        troubles: list[str] = []
        for folder in _list_operators(self._root):
            name = folder.name
            try:
                stores = _list_stores(folder)
                name = stores[0].operator
                operators.append(self._read_operator(stores, batch + 1))
            except (IndexError, struct.error):
                troubles.append(f"of {name}: a file of it is damaged; {_ASK_SPARK}")
            except (OSError, ValueError) as error:
                troubles.append(f"of {name}: {str(error) or type(error).__name__}")
        note = f"the rows of state are not known {'; '.join(troubles)}" if troubles else ""
        return QueryState(tuple(operators), batch, note)

    def _read_operator(self, stores: Sequence[_Store], version: int) -> OperatorState:
        partition_keys: list[_Keys] = []
        is_window = False
        for store in stores:
            is_split = store.has_prefix and self._provider == _ROCKSDB
            due = None if is_split else _locate_due_time(store)
            is_window = due is not None and len(due) > 2
            partition_keys += [
                self._read_partition(store.partition_folder(number), version, due)
                for number in range(store.partitions)
            ]
        return _count_state(stores[0].operator, partition_keys, is_window)

    def _read_partition(self, folder: Path, version: int, due: Due | None) -> _Keys:
        # The partition is put back once it is read whole, so a failure leaves nothing half read.
        partition = self._partitions.pop(folder, None)
        if (
            partition is not None
            and partition.version <= version <= partition.version + _MAX_DELTAS
        ):
            try:
                self._catch_up(folder, partition, version, due)
            except FileNotFoundError:
                partition = None  # Spark has removed the next file.
        else:
            partition = None
        if partition is None:
            partition = _PartitionKeys(_find_snapshot(folder, version, _SNAPSHOTS[self._provider]))
            try:
                if partition.version:
                    self._read_snapshot(folder, partition, due)
                self._catch_up(folder, partition, version, due)
            except FileNotFoundError as error:
                lacking = Path(error.filename).relative_to(self._root)
                raise _StateUnreadable(f"'{lacking}' is not there; {_ASK_SPARK}") from None
        self._partitions[folder] = partition
        return partition.keys

    def _catch_up(
        self, folder: Path, partition: _PartitionKeys, version: int, due: Due | None
    ) -> None:
        while partition.version < version:
            name = f"{partition.version + 1}{_BATCHES[self._provider]}"
            self._apply(folder / name, partition.keys, due)
            partition.version += 1

    def _read_snapshot(self, folder: Path, partition: _PartitionKeys, due: Due | None) -> None:
        path = folder / f"{partition.version}{_SNAPSHOTS[self._provider]}"
        if self._provider == _OWN_MAP:
            self._apply(path, partition.keys, due)
            return
        self._count_bytes(path)
        tables, rows = _read_description(path)
        newest: dict[bytes, int] = {}
        for name in tables:
            table = folder / "SSTs" / name
            self._count_bytes(table)
            _add_table(table.read_bytes(), newest)
        alive = [key for key, entry in newest.items() if entry & 0xFF == _SET]
        if len(alive) != rows:
            raise _StateUnreadable(
                f"'{path.relative_to(self._root)}' has {format_count(rows, 'row')} and its tables "
                f"{len(alive)}; {_ASK_SPARK}"
            )
        for key in alive:
            partition.keys[key] = None if due is None else _read_due(key[1:], due)

    def _apply(self, path: Path, keys: _Keys, due: Due | None) -> None:
        self._count_bytes(path)
        content = path.read_bytes()
        if content != _NO_CHANGE:
            raw = _unpack_lz4(content)
            if raw[:3] == _LATER_CHANGELOG:
                raise _StateUnreadable(
                    f"its changelogs are of version {raw[3:4].decode()}; {_ASK_SPARK}"
                )
            _apply_changes(raw, keys, due, 1 if self._provider == _ROCKSDB else 0)

    def _count_bytes(self, path: Path) -> None:
        self._bytes_left -= path.stat().st_size
        if self._bytes_left < 0:
            raise _StateUnreadable(
                f"its files have more than {MAX_STATE_BYTES // 1_000_000} MB; {_ASK_SPARK}"
            )


def _find_obstacle(provider: str, settings: Mapping[str, str]) -> str | None:
    """Return why the files of a state cannot be read here; None if they can."""
    if provider not in _SNAPSHOTS:
        return f"a {provider} keeps them in files that only Spark reads; {_ASK_SPARK}"
    for name, required in _NEEDED.items():
        if (value := settings.get(name, required)) != required:
            return f"'{name}' is '{value}', and only '{required}' is read here; {_ASK_SPARK}"
    return None


def _list_operators(root: Path) -> list[Path]:
    with os.scandir(root / "state") as entries:
        numbers = sorted(int(entry.name) for entry in entries if entry.name.isdecimal())
    return [root / "state" / str(number) for number in numbers]


def _list_stores(folder: Path) -> list[_Store]:
    """Return the stores of an operator that have each of its rows once."""
    try:
        text = (folder / "_metadata" / "metadata").read_text(encoding="utf-8")
        metadata = json.loads(text.partition("\n")[2])
        kind = metadata["operatorInfo"]["operatorName"]
        stores = {store["storeName"]: int(store["numPartitions"])
                  for store in metadata["stateStoreInfo"]}  # fmt: skip
        split = {store["storeName"] for store in metadata["stateStoreInfo"]
                 if store["numColsPrefixKey"]}  # fmt: skip
    except (OSError, KeyError, RecursionError, TypeError, ValueError):
        raise _StateUnreadable(f"its layout is not one that is read here; {_ASK_SPARK}") from None
    row_stores = [name for name in stores if name == "default" or name.endswith(_JOIN_STORE_SUFFIX)]
    if not row_stores or max(stores.values()) > 100_000:
        raise _StateUnreadable(f"its layout is not one that is read here; {_ASK_SPARK}")
    operator = f"{folder.name} {kind}"
    return [_Store(operator, folder, name, stores[name], name in split) for name in row_stores]


def _locate_due_time(store: _Store) -> Due | None:
    """Return where the keys of a store have the time that they wait for; None if unknown."""
    if store.name != "default":
        return None  # A join keeps the compared columns in values, too.
    try:
        content = (store.partition_folder(0) / "_metadata" / "schema").read_bytes()
        return locate_due_time(json.loads(_read_key_schema(content)))
    except (OSError, KeyError, RecursionError, TypeError, ValueError, AttributeError, struct.error):
        return None


def _read_key_schema(content: bytes) -> str:
    """Return the schema of the keys from a file of version 2: a version, then a text in pieces."""
    (length,) = struct.unpack_from(">H", content)
    if content[2 : 2 + length] != b"v2":
        raise _StateUnreadable("its schema is of another version")
    (pieces,) = _SIZE.unpack_from(content, position := 2 + length)
    position, text = position + 4, b""
    for _ in range(pieces):
        (length,) = struct.unpack_from(">H", content, position)
        text += content[position + 2 : position + 2 + length]
        position += 2 + length
    return text.decode("utf-8")


def _find_snapshot(folder: Path, version: int, ending: str) -> int:
    """Return the newest snapshot up to a version; 0 if there is none."""
    with os.scandir(folder) as entries:
        names = [entry.name.partition(ending) for entry in entries]
    numbers = [
        int(number) for number, end, tail in names if end and not tail and number.isdecimal()
    ]
    return max((number for number in numbers if number <= version), default=0)


# -- one file --------------------------------------------------------------------------------------

_MAGIC: Final = b"LZ4Block"
_END: Final = _MAGIC + b"\x15" + bytes(12)
_LATER_CHANGELOG: Final = b"\0\2v"
"""Changelogs from version 2 on begin with their version; here that would be a key of 160 kB."""

_NO_CHANGE: Final = _HEADER.pack(_MAGIC, 0x15, 4, 4, 0x084D80DB) + _SIZE.pack(-1) + _END
"""The delta of a batch that changed nothing in its partition; most deltas are such."""


def _unpack_lz4(content: bytes) -> bytes:
    """Unpack what Java's `LZ4BlockOutputStream` wrote.

    Raises:
        _StateUnreadable: it is something else.
        ValueError, OSError, struct.error: a block is damaged.
    """
    codec, blocks, position = pa.Codec("lz4_raw"), [], 0
    while position < len(content):
        magic, token, size, length, _ = _HEADER.unpack_from(content, position)
        position += _HEADER.size
        if magic != _MAGIC or length > _MAX_BLOCK:
            raise _StateUnreadable(f"a file of it is not a map of rows; {_ASK_SPARK}")
        if token & 0xF0 == _STORED:
            blocks.append(content[position : position + size])
        elif token & 0xF0 == _LZ4:
            blocks.append(
                codec.decompress(content[position : position + size], length, asbytes=True)
            )
        else:
            raise _StateUnreadable(f"a file of it is not a map of rows; {_ASK_SPARK}")
        position += size
    return b"".join(blocks)


def _apply_changes(raw: bytes, keys: _Keys, due: Due | None, start: int) -> None:
    """Apply the changes in a file to a partition's keys; the row in a key begins at `start`."""
    position = 0
    while True:
        (size,) = _SIZE.unpack_from(raw, position)
        if size < 0:
            return
        key = raw[position + 4 : position + 4 + size]
        position += 4 + size
        (size,) = _SIZE.unpack_from(raw, position)
        position += 4
        if size < 0:
            keys.pop(key, None)
        else:
            position += size
            keys[key] = None if due is None else _read_due(key[start:], due)


def _read_due(key: bytes, due: Due) -> int | None:
    """Return the time that a key waits for; None if that is null.

    A row begins with a bit for each field, set for nulls, in words of eight bytes; then follows a
    word for each field. The word of a struct has its offset and size, and there it is a row again.
    """
    start = 0
    word: int | None = None
    for fields, index in zip(due[::2], due[1::2], strict=True):
        if key[start + index // 8] >> index % 8 & 1:
            return None
        (word,) = _WORD.unpack_from(key, start + (fields + 63) // 64 * 8 + 8 * index)
        assert word is not None
        start = word >> 32
        if start < 0 or start >= len(key):
            break
    return word if is_instant(word) else None


# -- tables of RocksDB -----------------------------------------------------------------------------

_FOOTER: Final = 53
_TABLE_MAGIC: Final = bytes.fromhex("f7cff485b741e288")
_TABLE_VERSIONS: Final = (4, 5)
_PLAIN_BLOCK, _LZ4_BLOCKS = 0, (4, 5)
_REMOVED, _SET, _REMOVED_ONCE = 0, 1, 7
"""The effect of a table's entry on its key."""

_SPLIT_BLOCK: Final = 1 << 31
"""The mark of a block that has a hash index behind its entries."""


_DAMAGED_ARCHIVE: Final = (
    *(zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError),
    *(AttributeError, LookupError, TypeError, ValueError),
)
"""Errors that a damaged archive, and damaged JSON in it, may raise."""


def _read_description(path: Path) -> tuple[list[str], int]:
    """Return the tables that a snapshot of RocksDB names, and the rows that Spark counts in it."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open("metadata") as member:
            text = member.read(MAX_STATE_BYTES + 1)
        if len(text) > MAX_STATE_BYTES:
            raise ValueError("its description is too large")
        description = json.loads(text.partition(b"\n")[2])
        tables = [table["dfsSstFileName"] for table in description["sstFiles"]]
        rows = description["numKeys"]
        is_known = not description.get("columnFamilyMapping") and not description.get("logFiles")
        is_known = is_known and all(Path(name).name == name for name in tables)
    except _DAMAGED_ARCHIVE as error:
        raise _StateUnreadable(f"a snapshot of it is damaged ({error}); {_ASK_SPARK}") from None
    if not is_known or not isinstance(rows, int) or rows < 0:
        raise _StateUnreadable(f"a snapshot of it is not one that is read here; {_ASK_SPARK}")
    return tables, rows


def _add_table(content: bytes, newest: dict[bytes, int]) -> None:
    """Note the newest entry of each key of a table: its sequence number and its operation.

    A block has its keys in order; the first number of an entry says how many bytes its key shares
    with the key before. The footer says where the index is, and the index where all blocks are.
    """
    if content[-8:] != _TABLE_MAGIC or content[-12] not in _TABLE_VERSIONS:
        raise _StateUnreadable(f"its tables are not ones that are read here; {_ASK_SPARK}")
    position = len(content) - _FOOTER + 1
    for _ in range(2):  # The handle of the metaindex comes first.
        _, position = _read_number(content, position)
    offset, position = _read_number(content, position)
    size, _ = _read_number(content, position)
    bytes_left = _MAX_TABLE
    for handle in _list_blocks(_read_block(content, offset, size)):
        block = _read_block(content, *handle)
        bytes_left -= len(block) + 1
        for key in _list_keys(block):
            bytes_left -= len(key)
            if bytes_left < 0:
                break
            (entry,) = _ENTRY.unpack_from(key, len(key) - 8)
            if entry & 0xFF not in (_REMOVED, _SET, _REMOVED_ONCE):
                raise _StateUnreadable(f"its tables have entries that are merged; {_ASK_SPARK}")
            if entry > newest.get(key[:-8], -1):
                newest[key[:-8]] = entry
        if bytes_left < 0:
            raise _StateUnreadable(f"its tables are too large; {_ASK_SPARK}")


_ENTRY: Final = struct.Struct("<Q")


def _read_number(content: bytes, position: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, lowest first, and where it ends."""
    number = shift = 0
    while True:
        byte = content[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position
        if shift > 63:
            raise _StateUnreadable(f"a table of it is damaged; {_ASK_SPARK}")


def _read_block(content: bytes, offset: int, size: int) -> bytes:
    """Return the entries of a block, without the restart points behind them."""
    kind, block = content[offset + size], content[offset : offset + size]
    if kind in _LZ4_BLOCKS:
        length, position = _read_number(block, 0)
        if length > _MAX_BLOCK:
            raise _StateUnreadable(f"a block of its tables is too large; {_ASK_SPARK}")
        block = pa.Codec("lz4_raw").decompress(block[position:], length, asbytes=True)
    elif kind != _PLAIN_BLOCK:
        raise _StateUnreadable(f"its tables are compressed otherwise than with LZ4; {_ASK_SPARK}")
    (restarts,) = _COUNT.unpack_from(block, len(block) - 4)
    end = len(block) - 4 - 4 * restarts
    if restarts >= _SPLIT_BLOCK or end < 0:
        raise _StateUnreadable(f"its tables are not ones that are read here; {_ASK_SPARK}")
    return block[:end]


_COUNT: Final = struct.Struct("<I")


def _list_keys(block: bytes) -> Iterator[bytes]:
    key, position = b"", 0
    while position < len(block):
        shared, position = _read_number(block, position)
        size, position = _read_number(block, position)
        value, position = _read_number(block, position)
        key = key[:shared] + block[position : position + size]
        position += size + value
        yield key


def _list_blocks(index: bytes) -> Iterator[tuple[int, int]]:
    """Yield each block's offset and size; an entry may hold only the change from the one before."""
    position = offset = size = 0
    while position < len(index):
        shared, position = _read_number(index, position)
        unshared, position = _read_number(index, position)
        position += unshared
        if shared:
            change, position = _read_number(index, position)
            offset += size + _BLOCK_TRAILER
            size += change >> 1 ^ -(change & 1)
        else:
            offset, position = _read_number(index, position)
            size, position = _read_number(index, position)
        yield offset, size


_BLOCK_TRAILER: Final = 5


def _count_state(operator: str, partitions: Sequence[_Keys], is_window: bool) -> OperatorState:
    times = Counter(us for keys in partitions for us in keys.values() if us is not None)
    return OperatorState(
        operator,
        sum(map(len, partitions)),
        due=tuple(sorted(times.items())[:MAX_TIMES]),
        is_window=is_window,
        times=len(times),
    )

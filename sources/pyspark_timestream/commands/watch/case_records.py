"""Reads the records of a case: those that a counter of a partition has counted in a batch.

A checkpoint has the partition's clock before the batch and the settings that define time, so the
rules can run again over the batch's records. That commits nothing, and joins no group. If the times
cannot be read here, such as with a schema of a registry, show the first records of the batch
instead. Values that may be secrets are left out, as in `peek`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from pyspark_timestream.commands.peek.command import format_without_secrets
from pyspark_timestream.commands.watch.follow import Case
from pyspark_timestream.core.arrow import Mask
from pyspark_timestream.core.instants import NEVER, format_instant
from pyspark_timestream.core.policies import Action
from pyspark_timestream.errors import OptionError
from pyspark_timestream.kafka.decode.payload import Payload, read_payload
from pyspark_timestream.kafka.decode.records import ColumnSet, ReadRange, RecordBlock
from pyspark_timestream.kafka.options.checks import read_kafka_options
from pyspark_timestream.kafka.options.kafka_options import KafkaOptions
from pyspark_timestream.kafka.options.reading import SCHEMA_FORMATS
from pyspark_timestream.kafka.ranges import OffsetRange
from pyspark_timestream.report import cut_text, format_count
from pyspark_timestream.rules.step import ADJUSTED, LATE, BlockResult, step

MAX_SHOWN: Final = 10
MAX_READ: Final = 100_000
"""Search at most this many records."""

_MAX_BYTES: Final = 64_000_000
"""Search at most this many bytes of values."""

_MAX_CELL: Final = 300
_GROUP: Final = "timestream-watch"

CASE_COLUMNS: Final = ("offset", "timestamp", "event time", "CTI before it", "key", "value")


Row = tuple[str, ...]
"""A text for each of `CASE_COLUMNS`."""


@dataclass(frozen=True, slots=True)
class CaseRecords:
    """Some records of a case.

    Attributes:
        case: the case.
        rows: a text for each of `CASE_COLUMNS`; without control characters if they are escaped as
            usual.
        notes: remarks on them, a sentence each.
    """

    case: Case
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def read_case(case: Case, raw: Mapping[str, str]) -> CaseRecords:
    """Read the records of a case; `raw` are the options that say how to reach the brokers.

    Raises:
        OptionError, TimestreamError: an option is wrong, or the brokers do not answer.
    """
    from pyspark_timestream.kafka.client.range_reader import RangeReader

    options, why = _read_options(case, raw)
    reader: RangeReader = RangeReader(options, _GROUP)
    try:
        return search_records(case, options if not why else None, reader.read, why)
    finally:
        reader.close()


def _read_options(case: Case, raw: Mapping[str, str]) -> tuple[KafkaOptions, str]:
    """Return the query's options, or if these fail, options to fetch records, and why."""
    fetching = {**raw, "subscribe": case.partition.topic}
    try:
        options = read_kafka_options({**fetching, **case.settings})
    except OptionError as error:
        return read_kafka_options(fetching), str(error)
    for kind in (options.value_format, options.key_format):
        if kind in SCHEMA_FORMATS:
            return options, f"times are in payloads of format '{kind}'"
    return options, ""


def search_records(
    case: Case, options: KafkaOptions | None, read_range: ReadRange, why: str = ""
) -> CaseRecords:
    """Find the records of a case; without `options` return the first records of its batch."""
    rows: list[Row] = []
    notes = []
    searched, bytes_left = 0, _MAX_BYTES
    case_range = OffsetRange(case.partition, case.start, case.end)
    blocks = read_range(
        case_range, ColumnSet(timestamps=True, keys=True, values=True, headers=True)
    )
    chosen = _choose_first(blocks) if options is None else _choose_counted(case, options, blocks)
    for block, block_rows in chosen:
        rows += block_rows
        searched += len(block.offsets)
        bytes_left -= 0 if block.values is None else block.values.nbytes
        if len(rows) >= MAX_SHOWN or searched >= MAX_READ or bytes_left < 0:
            break
    if options is None:
        notes.append(
            f"which of the batch's records were counted is not known here: {why}; these are its "
            "first ones"
        )
    elif len(rows) < min(case.counted, MAX_SHOWN):
        if searched >= MAX_READ or bytes_left < 0:
            read_of = f"{format_count(searched, 'record')} of {case.end - case.start:,} offsets"
            notes.append(f"only the first {read_of} were searched")
        else:
            notes.append(
                f"{case.counted - len(rows):,} of {case.counted:,} are not in the topic any more"
            )
    return CaseRecords(case, tuple(rows[:MAX_SHOWN]), tuple(notes))


def _choose_first(blocks: Iterable[RecordBlock]) -> Iterator[tuple[RecordBlock, list[Row]]]:
    """Yield each block with its first records."""
    for block in blocks:
        rows = range(min(len(block.offsets), MAX_SHOWN))
        yield block, [_format_row(block, row, "", "") for row in rows]


def _choose_counted(
    case: Case, options: KafkaOptions, blocks: Iterable[RecordBlock]
) -> Iterator[tuple[RecordBlock, list[Row]]]:
    """Yield each block with the records that the case's counter counts, by the clock there."""
    clock = case.clock
    for block in blocks:
        payload = read_payload(options, None, block)
        clock, result = step(options.rules, clock, payload.events, payload.marks)
        mask = COUNTED[case.counter](options, payload, result)
        rows = []
        for row in np.flatnonzero(mask)[:MAX_SHOWN]:
            time = format_instant(int(result.times[row])) if result.well_formed[row] else "none"
            in_force_us = int(result.in_force_us[row])
            cti = "none" if in_force_us == NEVER else format_instant(in_force_us)
            rows.append(_format_row(block, int(row), time, cti))
        yield block, rows


Find = Callable[[KafkaOptions, Payload, BlockResult], Mask]


def _find_future(options: KafkaOptions, payload: Payload, result: BlockResult) -> Mask:
    limit_us, record_us = options.rules.max_future_us, payload.events.record_us
    if limit_us is None or record_us is None:
        return np.zeros(len(result.times), dtype=np.bool_)
    ahead: Mask = (result.times - limit_us > record_us) & (record_us != NEVER)
    return ahead & result.well_formed & ~result.late


def _find_valueless(payload: Payload, result: BlockResult) -> Mask:
    valueless = payload.events.valueless
    return np.zeros(len(result.times), dtype=np.bool_) if valueless is None else valueless


def _find_late(action: Action) -> Find:
    """Return the function that finds the late records that an action dropped, moved or flagged."""
    if not action.moves and action is not Action.FLAG:
        return lambda _, payload, result: result.late & ~result.keep
    violation = ADJUSTED if action.moves else LATE
    return lambda _, payload, result: result.late & (result.violation == violation)


COUNTED: Final[Mapping[str, Find]] = {
    **{action.counter: _find_late(action) for action in Action if action.counter},
    "malformed": lambda _, payload, result: result.malformed & ~_find_valueless(payload, result),
    "tombstones": lambda _, payload, result: result.malformed & _find_valueless(payload, result),
    "future": _find_future,
}


def _format_row(block: RecordBlock, row: int, time: str, cti: str) -> Row:
    stamp = "none"
    if block.timestamps_ms is not None and block.timestamps_ms[row].as_py() >= 0:
        stamp = format_instant(block.timestamps_ms[row].as_py() * 1_000)
    payloads = (None if side is None else side[row].as_py() for side in (block.keys, block.values))
    cells = (cut_text(format_without_secrets(value), _MAX_CELL) for value in payloads)
    return (str(block.offsets[row].as_py()), stamp, time, cti, *cells)

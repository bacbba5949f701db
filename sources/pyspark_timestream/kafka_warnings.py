"""The driver's warnings: looks for mistakes after each batch, and says each of them once."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark_timestream.diagnosis import worth_a_warning
from pyspark_timestream.findings import Finding, Kind
from pyspark_timestream.kafka_columns import Projection
from pyspark_timestream.kafka_offset import StreamOffset, group_name
from pyspark_timestream.kafka_options import KafkaOptions
from pyspark_timestream.mistakes import start_at_end
from pyspark_timestream.ranges import Partition, Range
from pyspark_timestream.records import Needs, RecordBlock
from pyspark_timestream.stream_history import Moment
from pyspark_timestream.stream_warnings import Warnings, new_warnings, warned
from pyspark_timestream.value_samples import describe_malformed, describe_unit, describe_values

if TYPE_CHECKING:
    from pyspark_timestream.kafka_fetch import RangeReader

__all__ = ["Warner"]

__all__ = ["Warner", "say_new"]

_LOG: Final = logging.getLogger(__name__)
_SAMPLE: Final = 100
"""So many of a partition's newest records are looked at for an example."""

_PATIENCE_MS: Final = 5_000
_AGAIN_US: Final = 1_000_000
"""While a stream stands still, only time can add to what is found."""


Description = Callable[[KafkaOptions, Projection | None, RecordBlock], str]
"""Says what a block of records shows; empty: nothing."""


class Warner:
    """Keeps the warnings of one run up to date.

    Args:
        options: what the query asks for.
        projection: the columns that it wants; None: not known.
        reader: makes what reads a few records, for their example.
    """

    def __init__(
        self,
        options: KafkaOptions,
        projection: Projection | None,
        reader: "Callable[[KafkaOptions, str], RangeReader]",
    ) -> None:
        self._options, self._projection, self._reader = options, projection, reader
        self._details: dict[Kind, str] = {}
        self._looked: tuple[tuple[str, int], int, Warnings] | None = None

    def begin(
        self, earliest: Mapping[Partition, int], starts: Mapping[Partition, int], bounded: bool
    ) -> Warnings:
        """The warnings of a new query that reads on from `starts`, of logs from `earliest` on."""
        passed_over = sum(at - earliest.get(part, at) for part, at in starts.items())
        if not bounded or not self._options.starts_by_default or not passed_over:
            return {}
        return warned({}, [start_at_end(passed_over)])

    def look(
        self,
        previous: StreamOffset,
        now: StreamOffset,
        log_ends: Mapping[Partition, int],
        now_us: int,
    ) -> Warnings:
        """The warnings of the stream that stands at `now`, after the batch `previous`.

        Args:
            previous: the last batch, with the warnings up to it.
            now: where the stream stands.
            log_ends: how far there are records to read.
            now_us: the wall clock.
        """
        batch = previous.stream, previous.number
        if self._looked is not None:
            looked_at, looked_us, warnings = self._looked
            if looked_at == batch and now_us - looked_us < _AGAIN_US:
                return warnings
        found = worth_a_warning((Moment(now_us, now, log_ends),), now_us)
        found += _still_at_end(previous)
        wanted = [
            each for each in found if each.kind is not Kind.IDLE_PARTITION or self._waits(now)
        ]
        warnings = warned(previous.warnings, wanted, lambda each: self._detail(each, now))
        self._looked = batch, now_us, warnings
        return warnings

    def _waits(self, now: StreamOffset) -> bool:
        """Whether results wait for a quiet partition for longer than the options say."""
        if now.bounded:
            return not self._options.final_cti
        return self._options.idle_timeout_us is None

    def _detail(self, finding: Finding, now: StreamOffset) -> str:
        """What the newest records of a partition say about `finding`, as far as they can be had."""
        describe = _DESCRIBED.get(finding.kind)
        if describe is None or not finding.partitions:
            return ""
        if finding.kind not in self._details:
            self._details[finding.kind] = self._described(describe, min(finding.partitions), now)
        return self._details[finding.kind]

    def _described(self, describe: Description, part: Partition, now: StreamOffset) -> str:
        try:
            blocks = self._newest_records(part, now)
            found = (describe(self._options, self._projection, block) for block in blocks)
            return next(filter(None, found), "")
        except Exception:
            # Records may be of any kind; a warning without an example is one all the same, and no
            # reason for a query to fail.
            _LOG.debug("%s: no example", part, exc_info=True)
            return ""

    def _newest_records(self, part: Partition, now: StreamOffset) -> list[RecordBlock]:
        position = now.partitions[part].start_inclusive
        span = Range(part, max(position - _SAMPLE, 0), position)
        patience_ms = min(self._options.poll_timeout_ms, _PATIENCE_MS)
        options = replace(self._options, poll_timeout_ms=patience_ms, fail_on_data_loss=True)
        reader = self._reader(options, group_name(options.group_prefix, now.stream))
        try:
            return list(reader.read(span, Needs(timestamps=True, values=True, headers=True)))
        finally:
            reader.close()


def _malformed(options: KafkaOptions, _: Projection | None, block: RecordBlock) -> str:
    return describe_malformed(options, block)


def _unit(options: KafkaOptions, _: Projection | None, block: RecordBlock) -> str:
    return describe_unit(options, block)


def _values(_: KafkaOptions, projection: Projection | None, block: RecordBlock) -> str:
    return "" if projection is None else describe_values(projection, block)


_DESCRIBED: Final[Mapping[Kind, Description]] = {
    Kind.MALFORMED: _malformed,
    Kind.IMPROBABLE_TIMES: _unit,
    Kind.WRONG_TYPE: _values,
}


def _still_at_end(previous: StreamOffset) -> list[Finding]:
    """The finding that the stream began at its end, as long as it has read nothing."""
    given = previous.warnings.get(Kind.START_AT_END)
    if given is None or not given.holds or any(span.size for span in previous.ranges()):
        return []
    return [given.finding]


def say_new(before: Warnings, after: Warnings) -> None:
    """Log the warnings that an offset has and the one before had not."""
    for finding in new_warnings(before, after):
        _LOG.warning("%s", finding.line)

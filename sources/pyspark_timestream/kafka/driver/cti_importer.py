"""Reading the topic of option `ctiImport` in the driver (semantics 6.1).

The rules are those of the stream itself (`cti.step` over its partitions, the minimum over them);
this reads on from where the last offset, or the last look, has come to.
"""

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Final, Protocol

from pyspark_timestream.connector.options import OptionError
from pyspark_timestream.cti.step import raised
from pyspark_timestream.cti.stream_cti import greatest
from pyspark_timestream.kafka.driver.idle_tracker import Watch, Watched
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.options.parsers import EARLIEST
from pyspark_timestream.kafka.plan.idleness import idle_partitions
from pyspark_timestream.kafka.plan.imported_ctis import (
    Imported,
    ImportedPartition,
    heard,
    topic_cti,
)
from pyspark_timestream.kafka.plan.losses import made_anew, reconcile
from pyspark_timestream.kafka.ranges import Partition, Range
from pyspark_timestream.kafka.task import ReadRange, Share, clocked

__all__ = ["Importer", "imported_options"]

_LOG: Final = logging.getLogger(__name__)
_DISCOVERY_US: Final = 1_000_000
_GONE_US: Final = 5_000_000
"""For how long a partition must be missing, or its log shorter, to count as that."""


class Asked(Watched, Protocol):
    """The part of the broker that is asked."""

    def partitions(self) -> list[Partition]:
        """The topic's partitions."""

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset of each."""

    def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last readable record of each."""

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of topics."""


def imported_options(options: KafkaOptions) -> KafkaOptions | None:
    """The options of a stream over the imported topic alone; None where nothing is imported.

    `idleTimeout`, `maxFuture`, `timeUnit` and `writerTimeout` hold for it as well; `writers` are
    waited for in the stream's own partitions only.
    """
    source = options.cti_import
    if source is None:
        return None
    own_header = (options.cti_header or "cti") if source.frequency is None else None
    return KafkaOptions(
        client=options.client,
        subscribe=(source.topic,),
        starting_offsets=EARLIEST,
        fail_on_data_loss=options.fail_on_data_loss,
        group_prefix=options.group_prefix,
        poll_timeout_ms=options.poll_timeout_ms,
        connect_timeout_ms=options.connect_timeout_ms,
        retries=options.retries,
        retry_interval_ms=options.retry_interval_ms,
        start_time=source.start_time,
        time_unit=options.time_unit,
        frequency=source.frequency,
        delay_us=source.delay_us,
        cti_header=source.header or own_header,
        writer_timeout_us=options.writer_timeout_us,
        max_future_us=options.max_future_us,
        idle_timeout_us=options.idle_timeout_us,
    )


class Importer:
    """Reads the imported topic on, look by look.

    Args:
        options: what `imported_options` gave.
        broker: to ask for the topic's partitions and ends.
        read: reads a range of it.
    """

    def __init__(self, options: KafkaOptions, broker: Asked, read: ReadRange) -> None:
        self._options = options
        self._broker = broker
        self._read = read
        self._bounds: dict[Partition, int] | None = None
        self._listed: list[Partition] = []
        self._listed_us = -_DISCOVERY_US
        self._missing_us: int | None = None
        self._known: Imported | None = None
        self._watch = Watch(options.idle_timeout_us)
        self.topic_ids: dict[str, str] = {}

    def bound(self) -> None:
        """Read no further than the topic goes now."""
        self._bounds = self._broker.ends(self._broker.partitions())
        self._watch = Watch(self._options.idle_timeout_us, across_runs=True)

    def look(
        self, recorded: Imported | None, topic_ids: Mapping[str, str], now_us: int
    ) -> Imported:
        """What the topic has said by now.

        Args:
            recorded: how far the last offset says that it was read.
            topic_ids: the ids of topics in that offset.
            now_us: the wall clock.

        Raises:
            OptionError: the topic does not exist.
            DataLost: records of it are gone, and option `failOnDataLoss` is true.
        """
        if self._known is None:
            self._known, self.topic_ids = recorded or Imported(), dict(topic_ids)
            self._watch.resume(self._known.partitions)
        known = self._known
        anew = self._list(now_us)
        wanted = {part: each.position for part, each in known.partitions.items()}
        log_ends = self._broker.ends(self._listed)
        if not log_ends and not wanted:
            raise OptionError(
                "ctiImport",
                f"topic '{(self._options.subscribe or ('',))[0]}' does not exist",
                "an existing topic",
                "create it",
            )
        known = self._rested(known, log_ends, now_us)
        ends = self._bounded(self._with_missing(log_ends, wanted, anew, now_us), wanted)
        if ends != wanted or anew:
            known = self._read_all(known, wanted, ends, anew)
        self._known = replace(known, cti_us=topic_cti(known.partitions.values(), known.cti_us))
        return self._known

    def _rested(self, known: Imported, log_ends: Mapping[Partition, int], now_us: int) -> Imported:
        """`known` with who is idle by now; who is no more does not take the topic's CTI back."""
        positions = {part: each.position for part, each in known.partitions.items()}
        was_idle = {part for part, each in known.partitions.items() if each.idle}
        since_us = self._watch.look(self._broker, positions, log_ends, was_idle, now_us)
        idle = idle_partitions(since_us, was_idle, self._options.idle_timeout_us, now_us)
        quiet_us = {part: each.quiet_since_us for part, each in known.partitions.items()}
        if idle == was_idle and quiet_us == {part: since_us.get(part) for part in quiet_us}:
            return known
        partitions = {}
        for part, each in known.partitions.items():
            if part in was_idle - idle and known.cti_us is not None:
                each = _raised(each, known.cti_us)
            partitions[part] = replace(each, idle=part in idle, quiet_since_us=since_us.get(part))
        return replace(known, partitions=partitions)

    def _read_all(
        self,
        known: Imported,
        wanted: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        anew: frozenset[str],
    ) -> Imported:
        """`known` after everything up to `ends`."""
        earliest = self._broker.earliest(ends)
        fail = self._options.fail_on_data_loss
        same = frozenset(self.topic_ids) - anew
        positions, losses = reconcile(wanted, earliest, ends, fail, anew, same)
        for loss in losses:
            _LOG.warning("%s; going on, as option 'failOnDataLoss' is 'false'", loss)
        begun = {
            part: replace(known.partitions[part], position=position)
            for part, position in positions.items()
        }
        begun |= {
            part: _found(known, earliest[part])
            for part in ends
            if part not in wanted and part in earliest
        }
        read = {part: self._read_on(part, each, ends[part]) for part, each in begun.items()}
        return replace(known, partitions=read)

    def _list(self, now_us: int) -> frozenset[str]:
        """List the partitions once a second; the topic if it was made anew since."""
        if now_us - self._listed_us < _DISCOVERY_US:
            return frozenset()
        self._listed, self._listed_us = self._broker.partitions(), now_us
        found = self._broker.topic_ids(self._options.subscribe or ())
        anew = made_anew(self.topic_ids, found)
        self.topic_ids = found or self.topic_ids
        return anew

    def _with_missing(
        self,
        ends: dict[Partition, int],
        wanted: Mapping[Partition, int],
        anew: Set[str],
        now_us: int,
    ) -> dict[Partition, int]:
        """`ends` with partitions that are missing for a moment, which are not gone."""
        missing = wanted.keys() - ends.keys()
        # A broker that no longer leads a partition may tell where its log ended.
        missing |= {
            part
            for part, end in ends.items()
            if end < wanted.get(part, 0) and part.topic not in anew
        }
        if not missing:
            self._missing_us = None
            return ends
        self._missing_us = now_us if self._missing_us is None else self._missing_us
        if now_us - self._missing_us >= _GONE_US:
            return ends
        return ends | {part: wanted[part] for part in missing}

    def _bounded(
        self, log_ends: dict[Partition, int], wanted: Mapping[Partition, int]
    ) -> dict[Partition, int]:
        """How far to read each partition."""
        if self._bounds is None:
            return log_ends
        return {
            part: min(end, max(self._bounds[part], wanted.get(part, 0)))
            for part, end in log_ends.items()
            if part in self._bounds
        }

    def _read_on(self, part: Partition, begun: ImportedPartition, end: int) -> ImportedPartition:
        span = Range(part, begun.position, end)
        if span.size <= 0:
            return begun
        for state, ctis_us in clocked(self._options, Share(span, begun.state), self._read):
            begun = heard(begun, state, ctis_us)
        return replace(begun, position=end)


def _found(known: Imported, position: int) -> ImportedPartition:
    """A partition that was not there before: it does not take the topic's CTI back."""
    found = ImportedPartition(position)
    return found if known.cti_us is None else _raised(found, known.cti_us)


def _raised(part: ImportedPartition, cti_us: int) -> ImportedPartition:
    return replace(part, state=raised(part.state, cti_us), cti_us=greatest(part.cti_us, cti_us))

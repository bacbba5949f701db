"""What one task of a batch does: read its ranges in order, judge, and prove CTIs.

Everything but the reading itself is pure; the reader is an argument.
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_timestream.connector.instants import format_instant
from pyspark_timestream.cti.step import Failure, Judgement, PartitionState, raised, step
from pyspark_timestream.cti.stream_cti import Prover
from pyspark_timestream.errors import ViolationFound
from pyspark_timestream.kafka.decode.columns import Projection
from pyspark_timestream.kafka.decode.payload import Payload, needs_of, read_payload
from pyspark_timestream.kafka.decode.records import Needs, RecordBlock
from pyspark_timestream.kafka.decode.rows import cti_rows, weave
from pyspark_timestream.kafka.options.checks import KafkaOptions
from pyspark_timestream.kafka.options.parsers import TimeFrom
from pyspark_timestream.kafka.ranges import Partition, Range

__all__ = ["ReadRange", "Share", "TaskPlan", "clocked", "end_state", "run_task"]

_LOG = logging.getLogger(__name__)

Instants = npt.NDArray[np.int64]
ReadRange = Callable[[Range, Needs], Iterator[RecordBlock]]


@dataclass(frozen=True, slots=True)
class Share:
    """One range of a task, and where its partition's clock stands before it.

    Attributes:
        span: the records to deliver.
        state: the clock before `span`; before `lead` where there is one.
        lead: records before `span` to read for the clock alone, since no other task can tell it.
        raises: offsets in `span`, or its end, increasing; and the CTI to which the clock is raised
            before the record there.
    """

    span: Range
    state: PartitionState
    lead: Range | None = None
    raises: tuple[tuple[int, int], ...] = ()

    def pieces(self) -> Iterator[tuple[int | None, Range]]:
        """The parts of `span` between raises, each with what the clock is raised to before it."""
        part, begin, end = self.span
        ctis_us = (None, *(cti_us for _, cti_us in self.raises))
        places = itertools.pairwise((begin, *(at for at, _ in self.raises), end))
        for cti_us, (first, stop) in zip(ctis_us, places, strict=True):
            yield cti_us, Range(part, first, stop)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """What one task has to do.

    Attributes:
        shares: the ranges to read, in this order.
        others_us: the CTIs of all partitions that are not in `shares`, at the batch's start, or
            the one that decides their merge.
        emitted_us: the stream's CTI at the batch's start: rows above it are news.
        opening_us: a CTI row to emit first; None: none.
        closing_us: a CTI row to emit last; None: none.
    """

    shares: tuple[Share, ...] = ()
    others_us: tuple[int | None, ...] = ()
    emitted_us: int | None = None
    opening_us: int | None = None
    closing_us: int | None = None


def run_task(
    options: KafkaOptions,
    projection: Projection,
    plan: TaskPlan,
    read: ReadRange,
    leave: Callable[[Partition, PartitionState], None],
    unfit: Counter[Partition] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of the task; `leave` is told each partition's end state once it is read.

    Into `unfit` goes how many values of each partition are no JSON of the schema.

    Raises:
        ViolationFound: an event or value that the options say to fail on.
    """
    unfit = Counter() if unfit is None else unfit
    needs = needs_of(options, projection)
    tells = projection.wants("cti")
    if plan.opening_us is not None and tells:
        yield cti_rows(projection, np.array([plan.opening_us]))
    own = tuple(share.state.cti_us for share in plan.shares)
    prover = Prover(own, plan.others_us, plan.emitted_us)
    for position, share in enumerate(plan.shares):
        state, partition = _state_at(options, share, read), share.span.partition
        for raised_us, span in share.pieces():
            if raised_us is not None:
                state = raised(state, raised_us)
                prover, _, ctis_us = prover.advance(position, np.array([state.cti_us]))
                if tells and len(ctis_us):
                    yield cti_rows(projection, ctis_us)
            for block in read(span, needs) if span.size else ():
                payload = read_payload(options, projection, block)
                state, judgement = step(options.rules, state, payload.events, payload.marks)
                if payload.json is not None:
                    unfit[partition] += int(np.count_nonzero(payload.json.malformed))
                _fail_on_violation(options, partition, block, judgement.failure)
                _warn_of_marks(options, partition, block, judgement)
                prover, news, ctis_us = prover.advance(position, judgement.cti_us)
                after = judgement.cti_index[news]
                if not tells:
                    after, ctis_us = after[:0], ctis_us[:0]
                keep = _keep(options, partition, block, payload, judgement)
                yield weave(projection, partition, block, payload, judgement, keep, after, ctis_us)
        leave(partition, state)
    if _is_news(plan.closing_us, prover.emitted_us) and tells:
        yield cti_rows(projection, np.array([plan.closing_us]))


def _is_news(cti_us: int | None, emitted_us: int | None) -> bool:
    return cti_us is not None and (emitted_us is None or cti_us > emitted_us)


def _state_at(options: KafkaOptions, share: Share, read: ReadRange) -> PartitionState:
    """The clock where the records to deliver begin."""
    if share.lead is None:
        return share.state
    return end_state(options, Share(share.lead, share.state), read)


def end_state(options: KafkaOptions, share: Share, read: ReadRange) -> PartitionState:
    """Where the partition's clock stands after the range: reading it for the clock alone."""
    state = share.state
    for after, _ in clocked(options, share, read):
        state = after
    return state


def clocked(
    options: KafkaOptions, share: Share, read: ReadRange
) -> Iterator[tuple[PartitionState, Instants]]:
    """The partition's clock after each block of the range, and the CTIs within the block."""
    state = share.state
    for block in read(share.span, needs_of(options, None)):
        payload = read_payload(options, None, block)
        state, judgement = step(options.rules, state, payload.events, payload.marks)
        yield state, judgement.cti_us


def _keep(
    options: KafkaOptions,
    partition: Partition,
    block: RecordBlock,
    payload: Payload,
    judgement: Judgement,
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which records become rows, after the event rules and the parse mode."""
    if payload.json is None or options.parse_mode == "PERMISSIVE":
        return judgement.keep
    broken = judgement.keep & payload.json.malformed
    if options.parse_mode == "FAILFAST" and broken.any():
        raise ViolationFound(
            f"{_where(partition, block, int(np.argmax(broken)))}: the value is no JSON of the "
            "schema, and option 'parseMode' is 'FAILFAST'; use 'PERMISSIVE' to get nulls, or "
            "'DROPMALFORMED' to leave such rows out"
        )
    return judgement.keep & ~payload.json.malformed


def _warn_of_marks(
    options: KafkaOptions, partition: Partition, block: RecordBlock, judgement: Judgement
) -> None:
    if len(judgement.unreadable):
        _LOG.warning(
            "%s: %d marks in header '%s' from here on cannot be read and are ignored",
            _where(partition, block, int(judgement.unreadable[0])),
            len(judgement.unreadable),
            options.cti_header,
        )


def _fail_on_violation(
    options: KafkaOptions, partition: Partition, block: RecordBlock, failure: Failure | None
) -> None:
    if failure is None:
        return
    where = _where(partition, block, failure.index)
    cti = "none yet" if failure.cti_us is None else format_instant(failure.cti_us)
    if failure.mark:
        what = f"mark in header '{options.cti_header}' cannot be read"
    elif failure.malformed:
        what = f"event is malformed ({_expected_of(options)})"
    else:
        what = f"event has event time {format_instant(failure.event_us)}, before"
    raise ViolationFound(
        f"{where}: the {what}; the CTI in force is {cti}, and option 'violationPolicy' is "
        "'fail'; use 'drop', 'adjust' or 'flag' to go on, or a larger 'ctiDelay'"
    )


def _expected_of(options: KafkaOptions) -> str:
    def name(source: TimeFrom) -> str:
        return f"'{source}'"

    readable = f"a readable time in {name(options.start_time)}"
    if options.end_time is None:
        return f"expected {readable}"
    edge = f" and 'start' or 'end' in {name(options.edge)}" if options.edge else ""
    return f"expected {readable} and a later one in {name(options.end_time)}{edge}"


def _where(partition: Partition, block: RecordBlock, index: int) -> str:
    offset = block.offsets[index].as_py()
    return f"{partition} offset {offset}"

"""Generates CTIs from events: for a partition (semantics 2.3 to 2.5) or for each writer (4.8).

The generator counts events, or measures the application time since the last trigger; an in-band
CTI that takes effect restarts both. So such CTIs cut a block into segments, and each segment is
computed as columns.

With `writerFrom` every event names its writer, and every writer has its own generator: a counter,
or the base of a timespan (4.9). A CTI that it generates counts as a mark of that writer, so that
`marks.fold_marks` finds the live writers, those silent for too long, and the minimum over all live
writers, which is the partition's CTI (4.10).
"""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_timestream.core.arrow import Integers, Mask
from pyspark_timestream.core.instants import (
    FINAL_US,
    MIN_US,
    NEVER,
    Instants,
    instant_or_none,
    instant_or_sentinel,
)
from pyspark_timestream.rules.clocks import (
    Events,
    PartitionClock,
    TimeRules,
    WriterState,
    accumulate_record_times,
)
from pyspark_timestream.rules.marks import (
    MarkEffects,
    Marks,
    Proposals,
    fold_marks,
    max_in_segments,
)

_EVENTS_PER_SEARCH: Final = 50
"""A search for one event costs about as much as this many events in a search for all at once."""

_ABOVE_ALL_US: Final = np.iinfo(np.int64).max
"""Above each event's time, so that the last proposal is the last winner."""


class CountedEvents(NamedTuple):
    """The counted events of a block (semantics 2.10): their rows and event times."""

    rows: Integers
    times: Instants


@dataclass(frozen=True, slots=True)
class GeneratedCtis:
    """The CTIs of a block, and the generator's state after it.

    Attributes:
        index: each CTI comes right after the record with this index; -1: before the first.
        us: the CTIs, strictly increasing, each above the one in force before the block.
        count: the counter after the block.
        base_us: the base of the timespan after the block.
        effective: true for each proposal that took effect.
    """

    index: Integers
    us: Instants
    count: int
    base_us: int | None
    effective: Mask


class _Generator(NamedTuple):
    """A generator between two events: the CTI in force (or NEVER), the counter and the base."""

    cti_us: int
    counter: int
    base_us: int | None


def generate_ctis(
    rules: TimeRules, clock: PartitionClock, events: CountedEvents, proposals: Proposals
) -> GeneratedCtis:
    """Run the generator over a block."""
    generator = _Generator(instant_or_sentinel(clock.cti_us), clock.count, clock.base_us)
    rising = _find_rising(generator.cti_us, proposals)
    if rules.every_events is not None or rules.every_us is not None:
        return _interleave(rules, generator, events, proposals, rising)
    # No generated CTI comes between them, so each rising proposal takes effect.
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    effective[rising] = True
    count = 0 if len(rising) else clock.count
    cuts, us = proposals.cuts[rising], proposals.us[rising]
    return GeneratedCtis(cuts - 1, us, count, clock.base_us, effective)


def _interleave(
    rules: TimeRules,
    generator: _Generator,
    events: CountedEvents,
    proposals: Proposals,
    rising: Integers,
) -> GeneratedCtis:
    """Generate CTIs between the `rising` proposals.

    Each round assumes that none of the next `ahead` proposals takes effect. If one does, the
    winner, all CTIs generated behind it are thrown away. The proposals behind it win as well, up to
    one that the events behind it may exceed; there the next round begins.
    """
    # Example: a CTI at every second event without delay, events at times 1 to 6, and proposals
    # 2 3 5 after 2 3 6 of them. Round 1 tries the 2, but events have already brought that. Round 2
    # tries the 3 and the 5: by themselves, events bring 4 and 6, but the 3 wins, so both go and the
    # counter begins again. Round 3 tries the 5, but events from there bring that, too. The CTIs are
    # 2 3 5.
    rows, times = events
    effective = np.zeros(len(proposals.us), dtype=np.bool_)
    indices = []
    ctis = []
    begin = 0
    position = 0
    ahead = 1
    event_counts = np.searchsorted(rows, proposals.cuts[rising])
    last_winners = _find_last_winners(rules, times, proposals.us[rising], event_counts).tolist()
    ends = event_counts.tolist()
    while position < len(rising):
        tried = rising[position : position + ahead]
        end = ends[position + len(tried) - 1]
        index, us, later = _generate_segment(rules, generator, rows[begin:end], times[begin:end])
        winner, generated = _find_first_effective(generator.cti_us, index, us, proposals, tried)
        indices.append(index[:generated])
        ctis.append(us[:generated])
        if winner is None:
            # None took effect: try twice as many in the next round.
            begin = end
            position += len(tried)
            ahead *= 2
            generator = later
            continue
        last = last_winners[position + winner]
        won = rising[position + winner : last + 1]
        cti_us = int(proposals.us[won[-1]])
        generator = _Generator(cti_us, 0, generator.base_us if rules.every_us is None else cti_us)
        effective[won] = True
        indices.append(proposals.cuts[won] - 1)
        ctis.append(proposals.us[won])
        begin = ends[last]
        position = last + 1
        ahead = winner + 1
    index, us, generator = _generate_segment(rules, generator, rows[begin:], times[begin:])
    indices.append(index)
    ctis.append(us)
    all_indices, all_ctis = np.concatenate(indices), np.concatenate(ctis)
    return GeneratedCtis(all_indices, all_ctis, generator.counter, generator.base_us, effective)


def _find_last_winners(
    rules: TimeRules, times: Instants, rising_us: Instants, event_counts: Integers
) -> Integers:
    """Return for each rising proposal the last one that surely takes effect if this one does.

    No event between the two can bring a CTI then. `event_counts` are of events before proposals.
    """
    if not len(rising_us):
        return event_counts
    # The greatest event time between each proposal and the next. With no event between the two,
    # `reduceat` takes the event behind them: the proposal may then be contested without need, which
    # costs another round and changes nothing.
    greatest_us = np.maximum.reduceat(np.append(times, _ABOVE_ALL_US), event_counts)
    contested = np.flatnonzero(greatest_us > rising_us + rules.delay_us)
    return contested[np.searchsorted(contested, np.arange(len(rising_us)))]


def _find_first_effective(
    cti_us: int, index: Integers, us: Instants, proposals: Proposals, tried: Integers
) -> tuple[int | None, int]:
    """Return the first of the `tried` proposals to take effect, and the number of CTIs before it.

    The CTIs `us` were generated as if none took effect; if the first is None, all of them stay.
    """
    if len(tried) == 1:
        in_force_us = us[-1] if len(us) else cti_us
        return 0 if proposals.us[tried[0]] > in_force_us else None, len(us)
    counts_before = np.searchsorted(index, proposals.cuts[tried])
    in_force_us = np.concatenate(([cti_us], us))[counts_before]
    winners = np.flatnonzero(proposals.us[tried] > in_force_us)
    return (int(winners[0]), int(counts_before[winners[0]])) if len(winners) else (None, len(us))


def _find_rising(cti_us: int, proposals: Proposals) -> Integers:
    """Find the proposals that are greater than all before them: no other can take effect."""
    highest = np.maximum.accumulate(np.concatenate(([cti_us], proposals.us)))
    return np.flatnonzero(highest[1:] > highest[:-1])


def _generate_segment(
    rules: TimeRules, generator: _Generator, rows: Integers, times: Instants
) -> tuple[Integers, Instants, _Generator]:
    """Generate CTIs from the events between two in-band CTIs; also return the later generator."""
    triggers, counter, base_us = _find_triggers(rules, generator, times)
    # Of few events, as between marks, `np.clip` takes twice as long.
    triggered_us = np.minimum(np.maximum(times[triggers] - rules.delay_us, MIN_US), FINAL_US)
    highest = np.maximum.accumulate(np.concatenate(([generator.cti_us], triggered_us)))
    rises = highest[1:] > highest[:-1]
    later = _Generator(int(highest[-1]), counter, base_us)
    return rows[triggers[rises]], triggered_us[rises], later


def _find_triggers(
    rules: TimeRules, generator: _Generator, times: Instants
) -> tuple[Integers, int, int | None]:
    """Find the counted events that trigger a CTI, and the counter and base after them."""
    counter, base_us = generator.counter, generator.base_us
    if len(times) and rules.every_events is not None:
        first_trigger = rules.every_events - 1 - counter
        triggers = np.arange(first_trigger, len(times), rules.every_events, dtype=np.int64)
        return triggers, (counter + len(times)) % rules.every_events, base_us
    if len(times) and rules.every_us is not None:
        base_us = int(times[0]) if base_us is None else base_us
        triggers = _find_span_triggers(times, base_us, rules.every_us)
        return triggers, counter, int(times[triggers[-1]]) if len(triggers) else base_us
    return np.empty(0, dtype=np.int64), counter, base_us


def _follow_few_triggers(highest: Instants, base_us: int, span_us: int) -> Integers:
    event = int(np.searchsorted(highest, base_us + span_us))
    chain = []
    while event < len(highest):
        chain.append(event)
        event = int(np.searchsorted(highest, int(highest[event]) + span_us))
    return np.array(chain, dtype=np.int64)


def _find_span_triggers(times: Instants, base_us: int, span_us: int) -> Integers:
    """Find the triggers: each is the first event at least `span_us` after the trigger before it.

    The running maximum first reaches a bound at the first event that reaches it. So one binary
    search over all events finds every event's successor, and a loop follows the chain, one step per
    CTI. If few events can trigger, search only for the successors in the chain.
    """
    highest = np.maximum.accumulate(times)
    if (int(highest[-1]) - base_us) // span_us < len(times) // _EVENTS_PER_SEARCH:
        return _follow_few_triggers(highest, base_us, span_us)
    successor = np.searchsorted(highest, highest + span_us).tolist()
    event = int(np.searchsorted(highest, base_us + span_us))
    chain = []
    while event < len(times):
        chain.append(event)
        event = successor[event]
    return np.array(chain, dtype=np.int64)


def fold_written_events(
    rules: TimeRules, clock: PartitionClock, events: Events, counted: CountedEvents
) -> MarkEffects:
    """Fold the events of a block; each counted event moves its writer's clock."""
    newest_us = _accumulate_seen_times(rules, clock, events.record_us)
    marks, generators = _run_writer_clocks(rules, clock, events.writers, counted, newest_us)
    effects = fold_marks(rules, clock, marks, events.record_us, len(events.start_us))
    # A writer without events in the block keeps its generator.
    generators = {**dict(clock.writers), **generators}
    writers = []
    for name, writer in effects.clock.writers:
        generator = generators.get(name, writer)
        updated = writer._replace(counted=generator.counted, base_us=generator.base_us)
        writers.append((name, updated))
    # The marks here are generated; none was written, so none can be ignored or noted.
    no_marks = np.zeros(len(effects.proposals.us), dtype=np.bool_)
    return effects._replace(
        clock=replace(effects.clock, writers=tuple(writers), noted_us=clock.noted_us),
        proposals=effects.proposals._replace(is_mark=no_marks),
    )


def _accumulate_seen_times(
    rules: TimeRules, clock: PartitionClock, record_us: Instants | None
) -> Instants | None:
    """Return the greatest record timestamp so far at each of n records; None without a timeout.

    Records before the first timestamp get that one (semantics 4.5).
    """
    if rules.writer_timeout_us is None or record_us is None:
        return None
    newest_us = accumulate_record_times(clock, record_us)
    times_us = newest_us[newest_us > NEVER]
    return np.maximum(newest_us, times_us[0]) if len(times_us) else None


class _WrittenEvents(NamedTuple):
    """The m counted events of a block, sorted by writer, and for each writer by offset.

    Attributes:
        rows: m rows.
        times: m instants.
        codes: m numbers of writers.
        is_new: m booleans: a writer's first event in the block.
        names: the writers by their numbers.
    """

    rows: Integers
    times: Instants
    codes: Integers
    is_new: Mask
    names: pa.Array


class _Runs(NamedTuple):
    """The m events, sorted as in `_WrittenEvents`, and their r runs.

    A run is a writer's events in a block; if the writer was forgotten in between, it starts over
    with a new run (4.5).

    Attributes:
        times: m instants.
        is_first: m booleans: a run begins here.
        numbers: m numbers of runs.
        begins: r indexes of events.
        counts: r counters, before each run.
        bases_us: r instants: the base of each run's timespan.
    """

    times: Instants
    is_first: Mask
    numbers: Integers
    begins: Integers
    counts: Integers
    bases_us: Instants


def _run_writer_clocks(
    rules: TimeRules,
    clock: PartitionClock,
    writers: pa.Array,
    counted: CountedEvents,
    newest_us: Instants | None,
) -> tuple[Marks, dict[str, WriterState]]:
    """Run every writer's generator over a block, on columns, for any number of writers.

    Cut the events of each writer into runs, and find the triggers of all runs at once. `newest_us`
    is from `_accumulate_seen_times`. Return the CTIs as marks, sorted by writer, and the generators
    of the block's writers.
    """
    events = _sort_by_writer(writers, counted)
    names, live = events.names.to_pylist(), dict(clock.writers)
    earlier = [live.get(name, WriterState()) for name in names]
    is_silent = _find_silences(earlier, events, newest_us, rules.writer_timeout_us)
    runs = _cut_runs(earlier, events, is_silent)
    triggers, counts, bases_us = _find_run_triggers(rules, runs)
    # A writer's last event comes right before the next writer's first, or ends the block.
    last_events = np.flatnonzero(np.append(events.is_new[1:], len(events.rows) > 0))
    last_runs = runs.numbers[last_events].tolist()
    generators = {
        names[code]: WriterState(None, None, int(counts[run]), instant_or_none(bases_us[run]))
        for code, run in zip(events.codes[events.is_new].tolist(), last_runs, strict=True)
    }
    return _make_marks(rules, events, runs, triggers), generators


def _sort_by_writer(writers: pa.Array, counted: CountedEvents) -> _WrittenEvents:
    encoded = writers.take(pa.array(counted.rows)).dictionary_encode()
    codes = encoded.indices.to_numpy()
    # NumPy sorts numbers of two bytes in linear time.
    narrow = codes.astype(np.uint16) if len(encoded.dictionary) < 2**16 else codes
    order = np.argsort(narrow, kind="stable")
    codes, is_new = codes[order], np.ones(len(codes), dtype=np.bool_)
    is_new[1:] = codes[1:] != codes[:-1]
    return _WrittenEvents(
        counted.rows[order], counted.times[order], codes, is_new, encoded.dictionary
    )


def _make_marks(rules: TimeRules, events: _WrittenEvents, runs: _Runs, triggers: Integers) -> Marks:
    """Return the CTIs of the events `triggers` as marks.

    An event that neither raises its writer's CTI nor begins a run changes nothing and becomes no
    mark, unless `writerTimeout` needs to know when its writer was last seen.
    """
    us = np.full(len(events.rows), NEVER)
    us[triggers] = np.clip(events.times[triggers] - rules.delay_us, MIN_US, FINAL_US)
    marked = np.arange(len(us))
    if rules.writer_timeout_us is None:
        greatest = max_in_segments(us, runs.is_first)
        matters = runs.is_first.copy()
        matters[1:] |= greatest[1:] > greatest[:-1]
        marked = np.flatnonzero(matters)
    writers = pa.DictionaryArray.from_arrays(pa.array(events.codes[marked]), events.names)
    yes = np.ones(len(marked), dtype=np.bool_)
    return Marks(
        events.rows[marked], us[marked], marked=yes, readable=yes, writers=writers, closes=~yes
    )


def _find_silences(
    earlier: list[WriterState],
    events: _WrittenEvents,
    newest_us: Instants | None,
    timeout_us: int | None,
) -> Mask:
    """Find the events before which their writer was silent for too long (semantics 4.5)."""
    if newest_us is None or timeout_us is None:
        return np.zeros(len(events.rows), dtype=np.bool_)
    seen_us = newest_us[events.rows]
    previous_us = np.roll(seen_us, 1)
    last_seen_us = [
        newest_us[0] if writer.seen_us is None else writer.seen_us for writer in earlier
    ]
    first_codes = events.codes[events.is_new]
    previous_us[events.is_new] = np.array(last_seen_us, dtype=np.int64)[first_codes]
    is_silent: Mask = seen_us > previous_us + timeout_us
    return is_silent


def _cut_runs(earlier: list[WriterState], events: _WrittenEvents, is_silent: Mask) -> _Runs:
    is_first = events.is_new | is_silent
    begins = np.flatnonzero(is_first)
    continues = (events.is_new & ~is_silent)[begins]
    counts = np.array([writer.counted for writer in earlier], dtype=np.int64)
    bases_us = np.array([instant_or_sentinel(writer.base_us) for writer in earlier], dtype=np.int64)
    codes = events.codes[begins]
    continued_us = np.where(continues, bases_us[codes], NEVER)
    return _Runs(
        times=events.times,
        is_first=is_first,
        numbers=np.cumsum(is_first) - 1,
        begins=begins,
        counts=np.where(continues, counts[codes], 0),
        bases_us=np.where(continued_us == NEVER, events.times[begins], continued_us),
    )


def _find_run_triggers(rules: TimeRules, runs: _Runs) -> tuple[Integers, Integers, Instants]:
    """Find the events that trigger a CTI, and each run's counter and base after it."""
    never = np.full(len(runs.begins), NEVER)
    if not len(runs.times):
        return np.empty(0, np.int64), runs.counts, never
    if rules.every_events is not None:
        # After event i of a run the counter is count + (i - begin) + 1. Where it reaches a multiple
        # of `every_events`, the event triggers a CTI and the counter begins again.
        shifts = runs.counts - runs.begins + 1
        counters = (np.arange(len(runs.times)) + shifts[runs.numbers]) % rules.every_events
        ends = np.append(runs.begins[1:], len(runs.times))
        return np.flatnonzero(counters == 0), counters[ends - 1], never
    if rules.every_us is not None:
        triggers = _find_run_span_triggers(runs, rules.every_us)
        bases_us = runs.bases_us.copy()
        # NumPy assigns in order, so a run keeps its last trigger.
        bases_us[runs.numbers[triggers]] = runs.times[triggers]
        return triggers, runs.counts, bases_us
    raise AssertionError("writers' clocks have a frequency")


def _find_run_span_triggers(runs: _Runs, span_us: int) -> Integers:
    """Find the triggers: each is the first event of its run `span_us` or more after the last.

    Stack the runs by the ranks of their running maxima, so that one search finds the successors in
    all of them; past a run's last event it finds the next run's first.
    """
    highest = max_in_segments(runs.times, runs.is_first)
    # Example: a span of 10, and times 0 12 5 25 in run 0 (base 0) and 3 14 in run 1 (base 3).
    # `values` is 0 3 12 14 25, so run 1 stands on `ground` 6, above all of run 0, and `ranks` is
    # 0 2 2 4 and 7 9. `successors` is 1 3 3 4 and 5 6: 4 is past run 0, 6 past run 1. The first
    # triggers are events 1 and 5 (at 12 and 14), so the chains are 1 3 and 5.
    values = np.unique(highest)
    # A rank above all values, for a bound that none reaches, still lies below the next run.
    height = len(values) + 1
    ground = runs.numbers * height
    ranks = ground + np.searchsorted(values, highest)
    successors = np.searchsorted(ranks, ground + np.searchsorted(values, highest + span_us))
    first_ranks = np.searchsorted(values, runs.bases_us + span_us)
    firsts = np.searchsorted(ranks, np.arange(len(runs.begins)) * height + first_ranks)
    ends = np.append(runs.begins[1:], len(highest))
    successor, chain = successors.tolist(), []
    for event, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        while event < end:
            chain.append(event)
            event = successor[event]
    return np.array(chain, dtype=np.int64)

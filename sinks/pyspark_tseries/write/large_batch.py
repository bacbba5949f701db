"""The commit of a batch that tasks have written: publish what came true, write the rest anew.

The series of the shares decide: a file whose series no other share has is published as it is, as
long as the forecast it was numbered by is true. Shares that have a series in common are merged by
the rules of a small batch, a part at a time, and so is a file whose forecast failed. Few rows of
many tasks are one share. Edits follow; they alone are held in memory whole.

The rules are semantics 16.7.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from pyspark_tseries.model.policy import Guard, Policy
from pyspark_tseries.model.series_index import NEVER_US, Head, advance, next_note
from pyspark_tseries.storage.data_files import WrittenFile, as_stored, write_events
from pyspark_tseries.storage.head_files import write_head
from pyspark_tseries.storage.location import Place
from pyspark_tseries.storage.staging import read_stream
from pyspark_tseries.write.batch import Attempt, Sight
from pyspark_tseries.write.edits import number_edits, targets_of
from pyspark_tseries.write.event_writer import Merged, Rules, at_once, merge, summed
from pyspark_tseries.write.numbering import Numbered, counted, number
from pyspark_tseries.write.originals import find_originals
from pyspark_tseries.write.rows import EDIT_OF, event_rows
from pyspark_tseries.write.spill import Names, Sorter, fewer, read_run, rising
from pyspark_tseries.write.task_output import LIMITS, Forecast, Limits, Share, parted

__all__ = ["LargeBatch"]

MOST_DELAY_US: Final = 60_000_000
"""A forecast of the commit's time that is older is false: `asOf` and ages count from that time."""


@dataclass(frozen=True, slots=True)
class LargeBatch:
    """Rows to append as a whole; what is not here is as in `attempts.Batch`.

    Attributes:
        shares: of the tasks, in the order of the input; their files stay until the caller, who
            knows what became of the batch, removes them.
        schema: the columns of `RowPlan.staged`, as the tasks knew them.
        own: a name unlike any other.
        limits: how much is sorted in memory at once.
    """

    shares: tuple[Share, ...]
    schema: pa.Schema
    policy: str
    author: str
    own: str
    token: tuple[str, int] | None = None
    principal: str | None = None
    missing: str = "fail"
    clock: str = "wall"
    limits: Limits = LIMITS

    @property
    def has_edits(self) -> bool:
        """Whether a row is an edit."""
        return any(share.has_edits for share in self.shares)

    @property
    def takes_long(self) -> bool:
        """Always: it may have to be written anew."""
        return True

    def prepare(
        self,
        place: Place,
        head_id: int | None,
        head: Head,
        now_us: int,
        new_id: int,
        sight: Sight | None = None,
        policy: Policy | None = None,
    ) -> Attempt:
        """As `attempts.Batch.prepare`, with its errors; whatever was written is removed then."""
        names = Names(place, f"{self.own}-{new_id:016x}")
        attempt = _Attempting(self, place, names, head_id, head, now_us, new_id)
        try:
            attempt.check(Guard(policy, self.author if self.principal is None else self.principal))
            return attempt.finish(sight)
        except BaseException:
            place.remove(attempt.paths)
            raise
        finally:
            names.discard()


class _Attempting:
    """One attempt; `paths` are the files of the commit that were begun so far."""

    def __init__(
        self,
        batch: LargeBatch,
        place: Place,
        names: Names,
        head_id: int | None,
        head: Head,
        now_us: int,
        new_id: int,
    ) -> None:
        self._batch, self._place, self._names = batch, place, names
        self._head_id, self._head, self._new_id = head_id, head, new_id
        self.paths: list[str] = []
        self._groups = _together(batch.shares, [self._series(share) for share in batch.shares])
        self._forecast = self._true_forecast(now_us)
        as_is = any(self._is_published(group) for group in self._groups)
        if as_is and self._forecast is not None:
            now_us = self._forecast.commit_us
        self._note = next_note(head, head_id, now_us=now_us, rows=0)
        assigned_us = self._note.commit_us if batch.clock == "wall" else NEVER_US
        self._rules = Rules(self._note, batch.author, batch.policy, assigned_us)

    def check(self, guard: Guard) -> None:
        """Raises PermissionDenied where the policy does not allow the batch."""
        self._guard = guard
        if guard.policy is None:
            return
        guard.need("update", "add events")
        guard.need_authors([self._batch.author])
        for share in self._batch.shares:
            for part in self._parts(share):
                guard.need_authors(part["author"].drop_null().unique().to_pylist())

    def finish(self, sight: Sight | None) -> Attempt:
        """Writes all files."""
        parts = [self._part(number, group) for number, group in enumerate(self._groups)]
        appended = summed(parts)
        written = [part.file for part in parts if part.file is not None]
        note, delta = counted(self._note, appended), appended.delta
        if sight is not None:
            edited, file = self._edited(sight, appended, written)
            note, delta = counted(note, edited), edited.delta
            written += [file] if file is not None else []
        note = replace(note, rows=note.rows + delta.num_rows)
        after, table = advance(self._head, delta, note)
        self.paths.append(write_head(self._place, self._new_id, table))
        return Attempt(self._new_id, after, written, self.paths)

    def _path(self, kind: str, number: int) -> str:
        name = f"{self._note.commit:010d}-{self._new_id:016x}.{number:04d}.parquet"
        path = f"kind={kind}/{name}"
        self.paths.append(self._place.file(path))
        return path

    def _series(self, share: Share) -> pa.Array:
        if share.series is not None:
            return read_stream(self._place, share.series)["series"].unique()
        parts = [parted(part)[0]["series"].unique() for part in self._few(share)]
        return pa.chunked_array(parts, pa.string()).unique()

    def _few(self, share: Share) -> Iterator[pa.RecordBatch]:
        if share.few is not None:
            yield from read_stream(self._place, share.few).to_batches()

    def _parts(self, share: Share) -> Iterator[pa.RecordBatch | pa.Table]:
        """All rows of a share, in some order."""
        yield from self._appends(share)
        yield from self._edits(share)

    def _true_forecast(self, now_us: int) -> Forecast | None:
        given = (share.forecast for share in self._batch.shares if share.forecast is not None)
        forecast = next(given, None)
        next_commit = self._head_id, self._head.note.commit + 1
        if forecast is None or (forecast.head_id, forecast.commit) != next_commit:
            return None
        # It may also lie ahead: then the clock was set back since.
        late = abs(max(now_us, self._head.note.commit_us) - forecast.commit_us) > MOST_DELAY_US
        return None if late or forecast.commit_us < self._head.note.commit_us else forecast

    def _is_published(self, group: Sequence[Share]) -> bool:
        share = group[0]
        true = self._forecast is not None and share.forecast == self._forecast
        return len(group) == 1 and share.file is not None and true

    def _part(self, number: int, group: Sequence[Share]) -> Merged:
        path = self._path("event", number)
        if self._is_published(group):
            file, series = group[0].file, group[0].series
            assert file is not None
            assert series is not None
            self._place.copy(self._place.file(file.path), self._place.file(path))
            return Merged(replace(file, path=path), read_stream(self._place, series))
        if sum(share.size for share in group) <= self._batch.limits.memory:
            return self._at_once(path, group)
        runs = fewer(
            self._place,
            self._names,
            self._runs(group),
            self._batch.schema,
            self._batch.limits.memory,
        )
        tables = rising([read_run(self._place, run, self._batch.schema) for run in runs])
        return merge(self._place, path, tables, self._head, self._rules)

    def _at_once(self, path: str, group: Sequence[Share]) -> Merged:
        parts = [part for share in group for part in self._appends(share)]
        rows = pa.Table.from_batches(parts, self._batch.schema).combine_chunks()
        series, given = (rows[name].combine_chunks() for name in ("series", "timestamp"))
        rules = self._rules
        events = number(series, given, self._head, rules.policy, rules.assigned_us)
        return at_once(self._place, path, rows, events, rules)

    def _appends(self, share: Share) -> Iterator[pa.RecordBatch]:
        yield from (parted(part)[0] for part in self._few(share))
        for run in share.runs:
            yield from read_run(self._place, run, self._batch.schema)

    def _runs(self, group: Sequence[Share]) -> list[str]:
        """The sorted runs of some shares, in the order of the input."""
        runs: list[str] = []
        sorter: Sorter | None = None
        for share in group:
            if share.few is None and sorter is not None:
                runs, sorter = runs + sorter.spill(), None
            runs += share.runs
            for part in self._few(share):
                sorter = sorter or Sorter(self._place, self._names, self._batch.limits.memory)
                sorter.add(parted(part)[0])
        return runs + (sorter.spill() if sorter is not None else [])

    def _edited(
        self, sight: Sight, appended: Numbered, written: Sequence[WrittenFile]
    ) -> tuple[Numbered, WrittenFile | None]:
        tables = [part for share in self._batch.shares for part in self._edits(share)]
        rows = pa.concat_tables(tables).combine_chunks()
        series, sequence = (rows[name].combine_chunks() for name in ("series", EDIT_OF.name))
        data = [*sight.files, *(as_stored(file, self._note.commit) for file in written)]
        targets = find_originals(self._place, data, targets_of(series, sequence))
        if self._guard.policy is not None:
            self._guard.need_edits(targets.author.drop_null().unique().to_pylist())
        edited = number_edits(
            targets,
            self._head,
            appended,
            sight.retained,
            self._batch.missing,
            self._rules.assigned_us,
        )
        if not len(edited.events.order):
            return edited.events, None
        table = event_rows(rows, edited.events, self._note, self._batch.author, edited.originals)
        return edited.events, write_events(self._place, self._path("edit", 0), table)

    def _edits(self, share: Share) -> Iterator[pa.Table]:
        for part in self._few(share):
            edits = parted(part)[1]
            if edits is not None:
                yield pa.Table.from_batches([edits])
        if share.edits is not None:
            yield read_stream(self._place, share.edits)


def _together(shares: Sequence[Share], series: Sequence[pa.Array]) -> list[list[Share]]:
    """The shares in groups, no two of which have a series in common; few rows are in one group.

    Groups, and the shares in each, are in the order of the input.
    """
    root = list(range(len(shares)))

    def find(at: int) -> int:
        while root[at] != at:
            at = root[at]
        return at

    def join(one: int, other: int) -> None:
        low, high = sorted((find(one), find(other)))
        root[high] = low

    few = [at for at, share in enumerate(shares) if share.few is not None]
    for at in few:
        join(few[0], at)
    for one, other in _shared(series):
        join(one, other)
    groups: dict[int, list[Share]] = {}
    for at, share in enumerate(shares):
        groups.setdefault(find(at), []).append(share)
    return list(groups.values())


def _shared(series: Sequence[pa.Array]) -> list[tuple[int, int]]:
    """Pairs of lists, enough to join all that have a name in common; each list's are distinct."""
    # Encoded part by part, with one dictionary: all names in one array may be too large for it.
    parts = pa.chunked_array(list(series), pa.string()).dictionary_encode().chunks
    codes = np.concatenate([np.empty(0, np.int32), *(part.indices.to_numpy() for part in parts)])
    last = np.full(codes.max(initial=-1) + 1, -1)  # The last list so far that has each name.
    pairs: list[tuple[int, int]] = []
    ends = np.cumsum([len(names) for names in series])
    for other, mine in enumerate(np.split(codes, ends[:-1])):
        before = np.flatnonzero(np.bincount(last[mine] + 1)[1:])
        pairs += [(one, other) for one in before.tolist()]
        last[mine] = other
    return pairs

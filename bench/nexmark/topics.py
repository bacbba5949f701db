"""The files that DuckDB reads, and the topics that all others read."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from broker import Broker
from kafka_records import filled

from nexmark.events import (
    PARTITIONS,
    Load,
    arrivals,
    interleave,
    rebase,
    write_avro,
)

__all__ = ["event_files", "fill_topic", "write_events"]

Lines = Callable[[int, int, int], Iterable[bytes]]
"""The generator's lines of a partition: from a number on, this many."""
_ENCODERS: Final[Mapping[str, Callable[[Iterable[bytes]], Iterator[bytes]]]] = {
    "json": iter,
    "avro": write_avro,
}


def event_files(load: Load, place: Path) -> list[Path]:
    """The file of each partition, in which its events are in the order of time."""
    return [place / _name(load, partition) for partition in range(PARTITIONS)]


def _name(load: Load, partition: int) -> str:
    return f"{load.events}-{partition}-from-{load.first_line(partition)}.jsonl"


def write_events(load: Load, place: Path, lines: Lines) -> list[Path]:
    """The files of `event_files`; those that are there already stay."""
    place.mkdir(parents=True, exist_ok=True)
    files = event_files(load, place)
    for partition, file in enumerate(files):
        if not file.exists():
            made = lines(partition, load.first_line(partition), load.events // PARTITIONS)
            unfinished = file.with_suffix(".unfinished")
            with unfinished.open("wb") as out:
                events = rebase(made, load.start_ms(partition), load.stretch)
                written = sum(out.write(value + b"\n") > 0 for _, value in events)
            if written != load.events // PARTITIONS:
                raise SystemExit(f"{file.name}: the generator wrote {written} events, not all")
            unfinished.rename(file)
    return files


def fill_topic(kafka: Broker, load: Load, form: str, files: Iterable[Path]) -> str:
    """A new topic with the events of `files`, as they arrive, and the closing ones."""
    partitions = [
        _ENCODERS[form](arrivals(_read(file), partition, load.closes_ms))
        for partition, file in enumerate(files)
    ]
    values = interleave(partitions)
    return filled(kafka, load.records, PARTITIONS, lambda first, end: islice(values, end - first))


def _read(file: Path) -> Iterator[tuple[int, bytes]]:
    begins = len(b'{"date_time":')
    with file.open("rb") as lines:
        for line in lines:
            yield int(line[begins : line.index(b",")]), line.rstrip()

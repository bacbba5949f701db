"""The readings, as Parquet files: the tags and fields of TSBS's load `cpu-only`, made by ourselves.

Every ten seconds each host reports ten whole percentages, each a random walk between 0 and 100 with
steps of a standard deviation of 1, as TSBS has it. Names, tags and random numbers are our own, in
TSBS's manner: the load is shaped like TSBS's and is not it.

A row is a reading as it arrives. `series` is the tag `hostname`; the other nine tags are columns of
text, the fields are `int64`. Rows are in the order of time, then of hosts. The seed decides what is
in them, however they are cut into files; `RandomState` is used because numpy promises that its
numbers stay the same in later versions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["FIELDS", "INTERVAL_S", "START_US", "TAGS", "Load", "batches", "write_files"]

FIELDS: Final = (
    "usage_user",
    "usage_system",
    "usage_idle",
    "usage_nice",
    "usage_iowait",
    "usage_irq",
    "usage_softirq",
    "usage_steal",
    "usage_guest",
    "usage_guest_nice",
)
CHOICES: Final = {
    "region": 9,
    "datacenter": 3,
    "rack": 100,
    "os": ("Debian12", "Debian13", "Ubuntu24.04LTS"),
    "arch": ("x64", "arm64"),
    "team": ("CHI", "LON", "NYC", "SF"),
    "service": 20,
    "service_version": 2,
    "service_environment": ("production", "staging", "test"),
}
"""Tag -> its values, or how many there are. A datacenter is one of its region."""
TAGS: Final = tuple(CHOICES)
"""The tags but `hostname`, which is the series."""

INTERVAL_S: Final = 10
START_US: Final = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z."""
HOUR_US: Final = 3_600_000_000
_LEAST_HOSTS: Final = 8
_LEAST_HOURS: Final = 12


@dataclass(frozen=True)
class Load:
    """A number of readings, and how they are cut.

    Attributes:
        hosts: how many there are, from 8 on.
        hours: for how long they report, from 12 on.
        file_minutes: the minutes of a file, which is what one commit writes.
        seed: of the random numbers.
    """

    hosts: int
    hours: int
    file_minutes: int = 10
    seed: int = 123

    def __post_init__(self) -> None:
        if self.hosts < _LEAST_HOSTS or self.hours < _LEAST_HOURS or self.file_minutes < 1:
            raise SystemExit(
                f"{self.hosts} hosts, {self.hours} hours, {self.file_minutes} minutes a file: "
                f"accepted are {_LEAST_HOSTS} hosts, {_LEAST_HOURS} hours and a minute, or more"
            )

    @property
    def steps(self) -> int:
        """How many readings a host has."""
        return self.hours * 3_600 // INTERVAL_S

    @property
    def rows(self) -> int:
        """How many readings there are."""
        return self.steps * self.hosts

    @property
    def values(self) -> int:
        """How many percentages there are."""
        return self.rows * len(FIELDS)

    @property
    def end_us(self) -> int:
        """The end of the load, exclusive."""
        return START_US + self.hours * HOUR_US

    @property
    def names(self) -> list[str]:
        """The hosts."""
        return [f"host_{number}" for number in range(self.hosts)]


def batches(load: Load) -> Iterator[pa.Table]:
    """The readings in the order of time, `file_minutes` at a time."""
    hosts = pa.table({"series": load.names, **_tags(load)})
    steps = load.file_minutes * 60 // INTERVAL_S
    part: list[npt.NDArray[np.int64]] = []
    for number, values in enumerate(_walks(load), 1):
        part.append(values)
        if len(part) == steps or number == load.steps:
            yield _table(hosts, number - len(part), np.concatenate(part))
            part = []


def write_files(load: Load, place: Path) -> list[Path]:
    """A file of each batch, in their order."""
    place.mkdir(parents=True)
    files = []
    for number, batch in enumerate(batches(load)):
        files.append(place / f"{number:05}.parquet")
        pq.write_table(batch, files[-1])
    return files


def _walks(load: Load) -> Iterator[npt.NDArray[np.int64]]:
    """Step after step, the fields of all hosts: hosts x fields, from 0 to 100."""
    random = np.random.RandomState(load.seed)
    at = random.uniform(0, 100, (load.hosts, len(FIELDS)))
    for _ in range(load.steps):
        yield at.astype(np.int64)
        at = np.clip(at + random.standard_normal(at.shape), 0, 100)


def _tags(load: Load) -> dict[str, list[str]]:
    """Tag -> its value for each host, which never changes."""
    # A generator of its own, so that the tags of a host do not depend on the walks.
    random = np.random.RandomState([load.seed, 1])
    found: dict[str, list[str]] = {}
    for tag, values in CHOICES.items():
        names = [str(number) for number in range(values)] if isinstance(values, int) else values
        if tag == "region":
            names = [f"region-{name}" for name in names]
        found[tag] = [names[each] for each in random.randint(0, len(names), load.hosts)]
    of_region = zip(found["region"], found["datacenter"], strict=True)
    found["datacenter"] = ["-".join(each) for each in of_region]
    return found


def _table(hosts: pa.Table, first: int, values: npt.NDArray[np.int64]) -> pa.Table:
    """The rows of consecutive steps from `first` on."""
    steps = len(values) // hosts.num_rows
    us = START_US + np.arange(first, first + steps) * INTERVAL_S * 1_000_000
    rows = hosts.take(pa.array(np.tile(np.arange(hosts.num_rows), steps)))
    times = pa.array(np.repeat(us, hosts.num_rows)).cast(pa.timestamp("us", "UTC"))
    columns = {"series": rows["series"], "timestamp": times}
    columns |= {tag: rows[tag] for tag in TAGS}
    columns |= {field: pa.array(values[:, number]) for number, field in enumerate(FIELDS)}
    return pa.table(columns)

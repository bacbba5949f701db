"""The page store-format.md says all that a reader of a store needs: its own readers show it.

The readers are blocks of the page and use nothing of this package. They read the store of the
page's commands and stores of random programs, and agree with what the package reads.
"""

import contextlib
import dataclasses
import io
import json
import random
import re
import zlib
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
import store_sample
from documents import ROOT, Block, check_comments, read, table
from lengths import in_ci
from tseries.builders import stored
from tseries.store_model_queries import micros

from pyspark_tseries import NoSuchEvent, TimeSeries
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.model import downsampling
from pyspark_tseries.model.columns import ERASURE_FIELD, table_schema
from pyspark_tseries.model.commits import CommitMetadata, attach_metadata, read_metadata
from pyspark_tseries.model.properties import new_properties
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.model.series_index import SeriesIndex, make_change
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.storage.snapshot import write_head
from pyspark_tseries.store.commit_history import keep_history
from pyspark_tseries.store.store import Store

PAGE = "docs/explanation/store-format.md"
VARYING = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # the table's id
    r"|(?<![0-9a-f])[0-9a-f]{16}(?![0-9a-f])|\b\d{13,19}\b"  # ids of files, times of commits
    r"|(?<=crc32\":\")[0-9a-f]{8}|(?<=crc32\": \")[0-9a-f]{8}|(?<=\"127\":\")[0-9a-f]{8}"
    r"|(?<=crc32 = )[0-9a-f]+|(?<=tseries = ')[0-9a-f]{8}"
    r"|2\d\d\d-\d\d-\d\dT[\d:]+\.\d+Z"  # times of commits, which have a fraction
    r"|(?<=size\":)\d+|(?<=sizeInBytes\":)\d+|(?<=py-)[\d.]+"
)
"""Texts that differ between two stores of the same commands."""


@pytest.fixture(scope="module")
def readers():
    """The definitions in the page's blocks that read a store."""
    session = {}
    for block in store_sample.programs(read(PAGE))[2:]:
        if "/data/" not in block:
            exec(block, session)
    return session


def test_the_bytes_on_the_page_are_those_that_its_commands_make(tmp_path):
    made, shown = store_sample.make(tmp_path / "s", read(PAGE)), store_sample.samples(read(PAGE))
    assert made.keys() == shown.keys()
    for name in made.keys() - {"head"}:
        masked = [VARYING.sub("*", text) for text in (shown[name], made[name])]
        assert masked[0] == masked[1], f"{name}: write it again with python docs/store_sample.py"


def test_the_head_on_the_page_is_written_as_its_bytes_are(tmp_path):
    shown = store_sample.samples(read(PAGE))
    content = store_sample.undump(shown["head"])
    assert store_sample.dump(content) == shown["head"]
    assert store_sample.describe_head(content) == shown["head metadata"]
    rows = pa.ipc.open_stream(content[8:]).read_all()
    again = attach_metadata(rows.replace_schema_metadata(None), read_metadata(rows.schema))
    written = write_head(parse_location(tmp_path), 0, again)
    with open(written, "rb") as file:
        assert file.read() == content


def test_what_is_shown_has_right_checksums(readers):
    shown = store_sample.samples(read(PAGE))
    # The block of a file without a line feed at its end has one.
    last = shown["last checkpoint"].removesuffix("\n")
    for text in (shown["append"], shown["erasure"], last):
        content = text.encode()
        readers["check"](content, readers["behind"](content, b'"crc32":"'))


def test_ids_on_the_page_belong_to_the_table():
    shown = store_sample.samples(read(PAGE))
    (table_id,) = re.findall('"id": "([^"]+)"', shown["first entry"])
    ids = re.findall("(?:head/|-)([0-9a-f]{16})", shown["files"])
    assert len(ids) > 4
    assert {int(each, 16) >> 42 for each in ids} == {zlib.crc32(table_id.encode()) >> 12}


def test_the_readers_read_the_store_of_the_page(tmp_path):
    session, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in store_sample.programs(read(PAGE)):
            exec(block.replace(store_sample.PLACE, str(tmp_path / "s")), session)
    for block in store_sample.programs(read(PAGE)):
        check_comments(Block("python", block, ""), printed.getvalue())


def some_store(path, seed):
    """A store that a random program of the client has made."""
    chance, start = random.Random(seed), datetime(2026, 1, 1, tzinfo=UTC)
    series = TimeSeries.create(
        path,
        {"value": pa.float64(), "note": pa.string()},
        chance.choice(["unlimited", "limit 30", "last 1h"]),
        "me",
        min_retention_age=timedelta(0),
        durability=chance.choice(["fsync", "os"]),
        auto_compact=False,
    )

    def rows():
        count = chance.choice([1, 3, 200])
        times = sorted(start + timedelta(seconds=chance.randrange(9000)) for _ in range(count))
        return pa.table(
            {
                "series": [chance.choice(["a", "b", "\U00020bb7", ""]) for _ in times],
                "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
                "value": [chance.choice([None, chance.random()]) for _ in times],
                "note": [chance.choice(["x", "y" * 50, None]) for _ in times],
            }
        )

    def change():
        name = chance.choice(["a", "b"])
        there = series.range_query().for_edits().select_from(name).events
        event = chance.choice(there) if there else None
        if event is None or event.is_edit or event.value["note"] == "":
            return
        with contextlib.suppress(NoSuchEvent):  # The row of an event that was erased.
            if chance.random() < 0.6:
                series.edit(name, event.sequence, {"value": 1.5})
            else:
                series.erase(name, [event.sequence], "by chance")

    steps = [
        lambda: series.append_many(rows(), out_of_order=chance.choice(["drop", "adjust"])),
        lambda: series.append(chance.choice("abc"), {"value": chance.random()}),
        change,
        change,
        lambda: compact(path, principal="me"),
        lambda: series.set_retained_range(chance.choice(["limit 20", "last 2h", "unlimited"])),
        lambda: series.set_policy({"me": ["read", "own", "update", "edit", "query_obsolete"]}),
    ]
    for _ in range((4, 30, 110)[seed % 3]):
        chance.choices(steps, [6, 20, 4, 4, 1, 1, 0.1])[0]()


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(in_ci(3, 6)))
def test_the_readers_agree_with_the_package_on_random_stores(tmp_path, readers, seed):
    some_store(tmp_path / "s", seed)
    files, numbers = readers["read_log"](tmp_path / "s")
    said, series = readers["read_head"](tmp_path / "s", numbers["tseries:head"])
    events = [row for path in files for row in readers["read_events"](tmp_path / "s", path)]
    columns = ["series", "sequence", "timestamp", "value", "note", "original_sequence", "commit"]
    mine = [
        tuple(micros(event[name]) if name == "timestamp" else event[name] for name in columns)
        for event in events
    ]
    assert sorted(mine, key=str) == sorted(map(tuple, stored(tmp_path / "s", *columns)), key=str)

    store = Store.open(tmp_path / "s")
    head_id, index = store.head_id(), store.index()
    metadata = dataclasses.asdict(index.metadata)
    ctis = metadata.pop("ctis")
    assert numbers["tseries:head"] == head_id
    assert said.pop("ctis")["writers"] == ctis["writers"]
    assert said == json.loads(json.dumps(metadata))
    names = index.ids.names()
    ours = index.lookup_all(names)
    for row, name in enumerate(names):
        theirs = {"floor_sequence": 0, "floor_us": -(2**62)} | series[name]
        assert theirs == {"series": name} | {key: ours[key][row] for key in ours}
    keep_history(store)
    (kept,) = (tmp_path / "s/_tseries/history").iterdir()
    ids = readers["read_history"](kept)
    assert ids[said["commit"]] == head_id
    acts = [act.id for act in TimeSeries.open(tmp_path / "s", "me").erasures()]
    assert acts[-1:] == [said["erasure"]][: len(acts)]


def names_of(marker):
    """The names in code in the first column of a table of the page."""
    return set(re.findall("`([^`]+)`", " ".join(row[0] for row in table(PAGE, marker))))


def test_every_property_of_a_store_is_on_the_page():
    day = RetainedRange(None, 86_400_000_000)
    made = new_properties(day, 1, day, {"me": ("own",)}, is_local=True)
    assert names_of("properties") == {*made, downsampling.PROPERTY}


def test_every_column_of_a_store_and_of_a_head_is_on_the_page():
    assert names_of("columns") == {*table_schema([]).names, ERASURE_FIELD.name}
    index = SeriesIndex()
    none = pa.array([], pa.string())
    head = make_change(none, index.lookup_all([]))
    assert names_of("head columns") == set(head.column_names)


def test_every_key_of_a_head_is_on_the_page():
    fields = {field.name for field in dataclasses.fields(CommitMetadata)}
    assert names_of("head keys") == fields


def sources():
    return "".join(path.read_text() for path in (ROOT / "sinks").rglob("*.py"))


def test_every_transaction_of_the_log_is_on_the_page():
    used = set(re.findall(r'"tseries:([a-z]+)[:"]', sources()))
    assert {name.split(":")[1] for name in names_of("transactions")} == used


def test_every_file_beside_the_log_is_on_the_page():
    used = set(re.findall(r'"_tseries", "([a-z.]+)"|"_tseries/([a-z]+)', sources()))
    locks = set(re.findall(r'"([a-z]+\.lock)"', sources()))
    told = " ".join(names_of("directory"))
    assert all(f"_tseries/{name}" in told for name in {*map("".join, used), *locks})

"""A store in an object store does what one on a disk does, without locks and without renaming."""

import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import DoubleType, StringType, StructType
from spark_task import in_task
from tseries.builders import VALUE, batch, forget_stores, sight_as_of, sight_now
from tseries.limits import set_limits
from tseries.meetings import Meeting, rival
from tseries.object_store import bucket  # noqa: F401 a fixture

from pyspark_tseries import DefaultSource, NoSuchStore, TimeSeries, WrongClock, describe
from pyspark_tseries.__main__ import main
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain import background as maintenance
from pyspark_tseries.maintain.background import maintain, remove_obsolete_files
from pyspark_tseries.maintain.rebuild import rebuild
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import Query, RetainedRange
from pyspark_tseries.read.delivery import InitialEvents, read_delivery
from pyspark_tseries.read.scan import Scope, run_query
from pyspark_tseries.read.subscription import Subscription
from pyspark_tseries.storage.location import Location, exclusive, parse_location
from pyspark_tseries.store.log import load_table
from pyspark_tseries.store.log_entries import TornEntry, entry_path, parse_entry
from pyspark_tseries.store.store import Store
from pyspark_tseries.write.task_output import SpillLimits, read_staged, stage

pytestmark = pytest.mark.timeout(600)

HOUR_US = 3_600_000_000
VALUES = {"value": pa.float64()}


@pytest.fixture
def location(bucket, request):  # noqa: F811 the fixture
    return parse_location(bucket.uri(f"some stores/{request.node.name}"), bucket.options)


@pytest.mark.outside_ci
def test_a_store_in_another_is_refused_there_too(store, location):
    with pytest.raises(UnusableStore, match=f"lies in the Delta table '{location.root}'"):
        TimeSeries.create(f"{location.root}/a/b", VALUES, storage_options=dict(location.options))


@pytest.fixture
def store(location):
    return Store.create(location, [VALUE], RetainedRange(limit=1000), min_retention_us=0)


def test_service_that_ignores_conditions_is_refused_when_a_store_is_created(bucket):  # noqa: F811
    uri = bucket.uri("careless").replace("s3://store/", "s3://careless/")
    with pytest.raises(UnusableStore, match="ignores the header If-None-Match") as caught:
        TimeSeries.create(uri, VALUES, storage_options=bucket.options)
    assert bucket.options["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
    assert Store.find(parse_location(uri, bucket.options)) is None


def test_creation_in_an_object_store_leaves_nothing_of_its_probe(store):
    listed = store.location.list_folders(store.location.file("_tseries"))
    assert not [name for name in listed if name.startswith("probe")]


def now_us():
    return time.time_ns() // 1000


def events(location):
    """(series, sequence, value) of all events, as a new reader sees them."""
    forget_stores()
    snapshot, index = sight_now(Store.open(location))
    found = run_query(Scope(snapshot, index), Query("allEdits")).table
    return list(
        zip(*(found[name].to_pylist() for name in ("series", "sequence", "value")), strict=True)
    )


def files_of(location, *directory):
    return sorted(path for path, _ in location.list_files(location.file(*directory)))


@pytest.mark.everyday
def test_the_python_client_appends_edits_and_queries(location):
    made = TimeSeries.create(
        location.root, VALUES, "limit 5", auto_compact=False, storage_options=dict(location.options)
    )
    for n in range(6):
        assert made.append("a", float(n)).sequence == n
    assert made.edit("a", 4, 40.0).sequence == 6
    rows = pa.table({"series": ["b", "a"], "value": [1.0, 2.0]})
    assert made.append_many(rows)["sequence"].to_pylist() == [0, 7]
    forget_stores()
    again = TimeSeries.open(location.root, storage_options=dict(location.options))
    found = again.range_query().select_from("a")
    assert [event.value for event in found.events] == [3.0, 40.0, 5.0, 2.0]
    assert again.verify() == []
    assert again.describe()["path"] == location.root
    assert again.describe()["events"] == 9


@pytest.mark.outside_ci
def test_a_token_is_stored_once(store, location):
    for _ in range(2):
        store.append(batch(("a", 1), token=("q", 7)))
    assert events(location) == [("a", 0, 0.0)]


def test_a_task_stages_many_rows_as_an_object_and_few_in_its_message(location):
    rows = pa.table({"n": range(100_000)})
    path = location.file("_tseries", "staging", "x.arrow")
    staged = stage(location, rows.to_batches(), rows.schema, path)
    few = stage(location, rows.slice(0, 3).to_batches(), rows.schema, path)
    assert (staged.rows, staged.path, few.path) == (100_000, path, None)
    assert read_staged(location, [staged, few]) == pa.concat_tables([rows, rows.slice(0, 3)])
    location.remove([path, path])
    assert files_of(location, "_tseries", "staging") == []


@pytest.mark.outside_ci
def test_compaction_leaves_few_files_and_what_is_out_of_range_is_gone(location):
    store = Store.create(location, [VALUE], RetainedRange(limit=3), min_retention_us=0)
    for n in range(8):
        store.append(batch(("a", n, float(n)), (f"b{n}", n, 0.0)))
    before = events(location)
    assert main(["compact", *command(location)]) == 0
    assert events(location) == before
    assert describe(location)["files"] == 1
    assert describe(location)["stored_events"] == 11
    assert verify(location) == []


def command(location):
    pairs = (f"--storage-option={name.lower()}={value}" for name, value in location.options)
    return [location.root, *pairs]


def test_the_command_line_describes_verifies_and_rebuilds(store, location, capsys):
    store.append(batch(("a", 1), ("b", 1)))
    for name in ("describe", "verify"):
        assert main([name, *command(location)]) == 0
    said = capsys.readouterr().out
    assert f"path              {location.root}" in said
    assert said.endswith("sound\n")
    location.remove(files_of(location, "_tseries", "head"))
    forget_stores()
    assert main(["verify", *command(location)]) == 1
    assert rebuild(location) == 2
    assert verify(location) == []


def test_a_lost_file_is_found(store, location):
    store.append(batch(("a", 1)))
    location.remove([location.file(store.snapshot().files[0].path)])
    assert [said for said in map(str, verify(location)) if "is missing" in said]


@pytest.mark.outside_ci
def test_as_of_shows_the_store_as_it_was(store, location):
    then = now_us() - 100 * HOUR_US
    for n in range(3):
        store.append(batch(("a", n, float(n))), clock=lambda n=n: then + n * HOUR_US)
    for _ in range(2):  # The head of then is made, and made again.
        snapshot, index = sight_as_of(Store.open(location), then + HOUR_US)
        assert run_query(Scope(snapshot, index), Query()).table["value"].to_pylist() == [0.0, 1.0]


@pytest.mark.outside_ci
def test_a_subscriber_gets_the_last_entries_and_then_every_event_once(store, location):
    store.append(batch(("a", 1, 1.0), ("a", 2, 2.0), ("b", 1, 3.0)))
    initial = InitialEvents(RetainedRange(limit=1), {})
    start, got = Subscription(location, initial).find_start(), []
    for n in range(4):
        follower = Subscription(location, initial)  # A restarted one, each time.
        end = follower.find_end(start, None)
        for task in follower.plan_tasks(start, end):
            for rows in read_delivery(task):
                got += list(
                    zip(rows["series"].to_pylist(), rows["sequence"].to_pylist(), strict=True)
                )
        start = end
        if n == 1:
            store.append(batch(("a", 3, 4.0), ("c", 1, 5.0)))
            forget_stores()
    assert got == [("a", 1), ("b", 0), ("a", 2), ("c", 0)]


def unpickled(adapter):
    """As it comes to a task."""
    return cloudpickle.loads(cloudpickle.dumps(adapter))


@pytest.mark.outside_ci
def test_data_source_writes_reads_and_streams_an_object_store(location):
    asked = {f"storageoptions.{name.lower()}": value for name, value in location.options}
    source = DefaultSource({"path": location.root, **asked})
    columns = StructType().add("series", StringType()).add("value", DoubleType())
    rows = pa.record_batch({"series": ["a"] * 20_000, "value": [float(n) for n in range(20_000)]})
    for number in (0, 1, 1):
        writes = unpickled(source.streamWriter(columns, False))
        with in_task(sql__streaming__queryId="query"):
            done = writes.write(iter([rows]))
        assert done.output.inline.path is not None
        writes.commit([done], number)
    assert files_of(location, "_tseries", "staging") == []
    reads = source.reader(source.schema())
    wanted = [unpickled(part) for part in reads.partitions()]
    found = [row for part in wanted for row in unpickled(reads).read(part)]
    table = pa.Table.from_batches(found)
    assert table["sequence"].to_pylist() == list(range(39_990, 40_000))  # The default: limit 10.
    follows = source.streamReader(source.schema())
    start = follows.initialOffset()
    end = follows.latestOffset(start, ReadAllAvailable())
    tasks = [unpickled(part) for part in follows.partitions(start, end)]
    got = [row for part in tasks for row in unpickled(follows).read(part)]
    assert pa.Table.from_batches(got)["sequence"].to_pylist() == [39_999]


@pytest.mark.outside_ci
def test_files_that_tasks_wrote_are_published_or_merged(location):
    limits = SpillLimits(rows=5, size=10**6, memory=500)
    asked = {f"storageoptions.{name.lower()}": value for name, value in location.options}
    source = DefaultSource({"path": location.root, "retainedRange": "unlimited", **asked})
    columns = StructType().add("series", "string").add("timestamp", "timestamp")
    us = pa.array(range(20), pa.int64()).cast(pa.timestamp("us", "UTC"))
    for number, names in enumerate(["ab", "cc"]):
        planned = source.streamWriter(columns, False)
        planned.target = replace(planned.target, limits=limits)
        writes = unpickled(planned)
        rows = [pa.record_batch({"series": [name] * 20, "timestamp": us}) for name in names]
        with in_task(sql__streaming__queryId="query"):
            done = [writes.write(iter([one.slice(0, 12), one.slice(12)])) for one in rows]
        assert all(output.file is not None for output in (task.output for task in done))
        writes.commit(done, number)
        assert files_of(location, "_tseries", "staging") == []
    assert len(files_of(location, "kind=event")) == 3
    assert verify(location) == []
    snapshot, index = sight_now(Store.open(location))
    found = run_query(Scope(snapshot, index), Query("allEdits")).table
    keys = list(zip(found["series"].to_pylist(), found["sequence"].to_pylist(), strict=True))
    assert keys == [
        (name, n) for name, end in (("a", 20), ("b", 20), ("c", 40)) for n in range(end)
    ]


def test_an_object_of_any_size_is_copied(location, monkeypatch):
    with location.write(location.file("from")) as file:
        file.write(bytes(range(100)) * 1000)
    for to, most in (("by the store", 100_000), ("by us", 99_999)):
        set_limits(monkeypatch, server_copy_bytes=most)
        location.copy(location.file("from"), location.file(to))
        with location.read(location.file(to)) as file:
            assert file.read() == bytes(range(100)) * 1000
    with pytest.raises(FileNotFoundError):
        location.copy(location.file("nothing"), location.file("to"))


@pytest.mark.outside_ci
def test_maintenance_removes_only_unneeded_files(store, location, monkeypatch):
    for n in range(15):
        store.append(batch(("a", n, float(n))))
    before = events(location)
    maintain(location)
    assert events(location) == before
    assert len(files_of(location, "_delta_log")) >= 15  # All of it is younger than ten minutes.
    old = [file.path for file in Store.open(location).snapshot().files]
    main(["compact", *command(location)])
    orphan = location.file("kind=event", "0000000099-00000000000000ff.parquet")
    with location.write(orphan) as file:
        file.write(b"of a writer that was killed")
    remove_obsolete_files(Store.open(location), now_us())
    assert {*map(location.file, old), orphan} <= set(files_of(location, "kind=event"))
    # The log and heads are as if they were older.
    set_limits(monkeypatch, log_versions=2)
    remove_obsolete_files(Store.open(location), now_us() + 2 * HOUR_US)
    assert len(files_of(location, "_delta_log")) < 15
    assert events(location) == before
    Store.open(location).append(batch(("a", 99, 99.0)))
    assert verify(location) == []


@pytest.mark.outside_ci
def test_cleaning_keeps_heads_during_a_storage_failure(store, location, monkeypatch):
    for n in range(3):
        store.append(batch(("a", n)))
    heads, read = files_of(location, "_tseries", "head"), Location.read

    def failing(self, path):
        if path in heads[1:]:
            raise OSError("slow down")
        return read(self, path)

    monkeypatch.setattr(Location, "read", failing)
    with pytest.raises(OSError, match="slow down"):
        remove_obsolete_files(store, now_us() + 2 * HOUR_US)
    monkeypatch.undo()
    assert files_of(location, "_tseries", "head") == heads
    assert verify(location) == []


@pytest.mark.outside_ci
def test_one_maintenance_of_a_host_is_at_work_at_a_time(store, location):
    with exclusive(location, maintenance.MAINTENANCE_LOCK) as first:
        assert first
        assert maintain(location) is None
    assert maintain(location) is not None


@pytest.mark.outside_ci
def test_maintenance_process_gets_storage_options_off_its_command_line(
    store, location, monkeypatch
):
    store.append(batch(("a", 1)))
    started, real = [], subprocess.Popen

    def start(line, **how):
        started.append(real(line, **how))
        return started[0]

    monkeypatch.setattr(maintenance.subprocess, "Popen", start)
    maintenance._run_once_per_process(location)
    assert "s3cret" not in " ".join(started[0].args)
    assert started[0].returncode == 0


@pytest.mark.outside_ci
def test_storage_options_may_come_from_the_environment(store, location):
    store.append(batch(("a", 1)))
    line = [sys.executable, "-m", "pyspark_tseries", "verify", location.root]
    environment = {**os.environ, **dict(location.options)}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=240)
    assert (done.stdout, done.stderr) == ("sound\n", "")


WRITER = """
import json, os, sys
from pyspark_tseries import TimeSeries
name, path = sys.argv[1:]
store = TimeSeries.open(path, name, storage_options=json.loads(os.environ["OPTIONS"]))
print("ready", flush=True)
sys.stdin.readline()
for n in range(8):
    store.append("both", float(n))
    store.append(name, float(n))
"""


@pytest.mark.outside_ci
def test_two_concurrent_writers_lose_and_repeat_nothing(store, location):
    environment = {**os.environ, "OPTIONS": json.dumps(dict(location.options))}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, name, location.root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in ("one", "two")
    ]
    try:
        assert [writer.stdout.readline() for writer in writers] == ["ready\n"] * 2
        for writer in writers:
            writer.stdin.write("go\n")
            writer.stdin.flush()
        assert [writer.wait(timeout=240) for writer in writers] == [0, 0]
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()
    found = events(location)
    assert [row[1:] for row in found if row[0] == "one"] == [(n, float(n)) for n in range(8)]
    assert [row[1:] for row in found if row[0] == "two"] == [(n, float(n)) for n in range(8)]
    both = [row for row in found if row[0] == "both"]
    assert [row[1] for row in both] == list(range(16))
    assert sorted(row[2] for row in both) == sorted([float(n) for n in range(8)] * 2)
    assert verify(location) == []


@pytest.mark.outside_ci
def test_who_lost_the_race_for_a_log_entry_numbers_its_batch_again(store, location):
    store.append(batch(("a", 1, 0.0)))
    first = [lambda: rival(store).append(batch(("a", 2, 1.0)))]
    Meeting(store, before=first).append(batch(("a", 3, 2.0)))
    assert events(location) == [("a", 0, 0.0), ("a", 1, 1.0), ("a", 2, 2.0)]
    assert verify(location) == []


def test_wrong_bucket_or_prefix_is_reported(bucket, location):  # noqa: F811 the fixture
    with pytest.raises(NoSuchStore, match=f"there is no store at '{location.root}'"):
        Store.open(location)
    wrong = parse_location("s3://no-such-bucket/a", bucket.options)
    for touch in (Store.open, lambda location: Store.create(location, [VALUE], None)):
        with pytest.raises(
            UnusableStore, match="'s3://no-such-bucket/a' cannot be opened"
        ) as error:
            touch(wrong)
        assert "NoSuchBucket" in str(error.value)
        assert "\x1b" not in str(error.value)


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers as S3 does to whom it does not know; in the bucket `public` anybody may look."""

    def do_GET(self):
        if self.path.startswith("/public?"):
            self.answer(
                200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            )
        elif self.path.startswith("/public/"):
            self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self.refuse()

    def refuse(self):
        known = self.headers["Authorization"].split("Credential=")[1].split("/")[0]
        body = (
            "<Error><Code>InvalidAccessKeyId</Code><Message>it is not in our records</Message>"
            f"<AWSAccessKeyId>{known}</AWSAccessKeyId></Error>"
        ).encode()
        self.answer(403, body)

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_PUT = do_POST = refuse

    def log_message(self, *args):
        """Not on the terminal."""


@pytest.fixture
def refusing():
    """How to reach a server that refuses."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "aws_access_key_id": "AKIAWRONG",
            "aws_secret_access_key": "s3cret",
            "aws_endpoint_url": f"http://127.0.0.1:{server.server_port}",
            "aws_allow_http": "true",
        }
        server.shutdown()


@pytest.mark.parametrize(("name", "done"), [("private", "opened"), ("public", "created")])
def test_wrong_credentials_are_reported_without_being_shown(refusing, name, done):
    path = f"s3://{name}/a"
    with pytest.raises(UnusableStore, match="next step: check the path and") as error:
        TimeSeries.create(path, VALUES, storage_options=refusing)
    message = "".join(traceback.format_exception(error.value))
    assert f"'{path}' cannot be {done}" in message
    assert "InvalidAccessKeyId" in message
    assert "AKIAWRONG" not in str(error.value)
    assert "s3cret" not in message


@pytest.mark.outside_ci
def test_who_may_only_read_is_told_so_in_one_line_whatever_he_writes(
    store, location, tmp_path, capsys
):
    """A compaction, an erasure and a rebuild ended with lines in colours, and without advice."""
    for number in range(3):
        store.append(batch(("a", number)))
    options = {**dict(location.options), "AWS_ACCESS_KEY_ID": "READER"}
    reader = TimeSeries.open(location.root, storage_options=options, auto_compact=False)
    assert len(reader.range_query().select_from("a")) == 3
    for write in (
        lambda: reader.append("a", 1.0),
        lambda: reader.edit("a", 0, 1.0),
        lambda: reader.erase("a", 0, "wrong"),
        lambda: reader.set_retained_range("limit 5"),
        lambda: reader.add_columns({"more": pa.float64()}),
        reader.compact,
    ):
        with pytest.raises(UnusableStore) as refused:
            write()
        check_refused(str(refused.value), location.root)
    TimeSeries.create(tmp_path / "s", VALUES, "unlimited").append("a", 1.0)
    given = [f"--storage-option={name}={value}" for name, value in options.items()]
    target = f"{location.root}-copy"
    for command in (
        ["compact", location.root],
        ["rebuild", location.root],
        ["maintain", location.root],
        ["erase", location.root, "--series=a", "--sequence=0", "--reason=wrong"],
        ["backup", str(tmp_path / "s"), target],
        ["backup", location.root, target],
    ):
        assert main([*command, *given]) == 1
        check_refused(
            capsys.readouterr().err.strip(), command[-1] if target in command else location.root
        )
    assert not verify(location)


def check_refused(message, root):
    assert message.startswith(f"'{root}' cannot be ")
    assert "; accepted: a prefix in a bucket that exists, and credentials that may " in message
    assert "; next step: check the path and storageOptions" in message
    assert not re.search(r"\x1b|\n|READER|s3cret", message)


@pytest.mark.outside_ci
def test_what_another_tool_does_there_is_judged_as_on_a_disk(store, location):
    for number in range(3):
        store.append(batch(("a", number), ("\U00020bb7", number)))
    before = keys(store)
    load_table(location).optimize.compact()
    assert keys(store) == before
    assert store.append(batch(("a", 3))) is not None
    before = keys(store)
    load_table(location).delete("sequence = 1")
    advised = rf"is a DELETE by .* pyspark_tseries repair {re.escape(shlex.quote(location.root))}, "
    for use in (store.snapshot, lambda: store.append(batch(("a", 4)))):
        with pytest.raises(UnusableStore, match=advised):
            use()
    assert "a DELETE by" in str(repair(location).mended[0])
    assert keys(store) == before
    assert store.append(batch(("a", 4))) is not None
    assert verify(location) == []


def test_the_object_stores_own_clock_says_that_a_writers_is_ahead(store, location):
    now = now_us()
    for ahead in (2 * HOUR_US, 60 * 365 * 24 * HOUR_US):
        with pytest.raises(WrongClock, match="set this machine's clock"):
            store.append(batch(("a", None)), clock=lambda ahead=ahead: now + ahead)
    store.append(batch(("a", None)), clock=lambda: now - 10 * 365 * 24 * HOUR_US)
    assert store.append(batch(("a", None)), clock=lambda: now) is not None
    assert verify(location) == []


def keys(store):
    found = run_query(Scope(store.snapshot(), store.index()), Query()).table
    return list(zip(found["series"].to_pylist(), found["sequence"].to_pylist(), strict=True))


@pytest.mark.outside_ci
def test_foreign_change_just_before_a_commit_is_found(store, location):
    """Delta lets an append pass a rival's commit that it does not conflict with."""
    store.append(batch(("a", 1)))

    def change():
        table = load_table(location)
        write_deltalake(table, table.to_pyarrow_table(), mode="append")

    writer = Meeting(store, before=[change])
    writer.append(batch(("a", 2)))
    with pytest.raises(UnusableStore, match="is a WRITE by 'delta-rs") as error:
        writer.snapshot()
    assert "restore(" not in str(error.value), "it would take the commit after it"
    repair(location)
    assert keys(store) == [("a", 0), ("a", 1)]
    assert verify(location) == []


def test_an_entry_that_delta_writes_has_a_checksum_that_reveals_what_was_changed(store, location):
    store.append(batch(("ä\U00020bb7", 1), ("b", 2), token=("tseries:q:x", 2**62)))
    store.append(batch(("b", 3)))
    maintain(location)
    store.refresh()
    for version in range(1, store.log.version() + 1):
        with location.read(entry_path(location, version)) as file:
            content = bytes(file.read())
        assert b'"crc32"' in content
        assert parse_entry(version, content).own is not None
        for before, after in (
            (b'\\"b\\"', b'\\"d\\"'),
            (b'"add"', b'"adc"'),
            (b"tseries:h", b"tseries:i"),
        ):
            if before in content:
                with pytest.raises(TornEntry, match="checksum is another one"):
                    parse_entry(version, content.replace(before, after))

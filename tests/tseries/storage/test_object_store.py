"""A store in an object store does what one on a disk does, without locks and without renaming."""

import http.server
import json
import os
import subprocess
import sys
import threading
import time
import traceback

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import DoubleType, StringType, StructType
from tseries.builders import VALUE, batch, sight_as_of
from tseries.object_store import bucket  # noqa: F401 a fixture

from pyspark_tseries import DefaultSource, NoSuchStore, TimeSeries, WrongClock, describe
from pyspark_tseries.__main__ import main
from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain import background as maintenance
from pyspark_tseries.maintain.background import clean, maintain
from pyspark_tseries.maintain.repair.repair import repair
from pyspark_tseries.maintain.verify import rebuild, verify
from pyspark_tseries.model.query import Query
from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.read.scan import answer
from pyspark_tseries.spark import writer
from pyspark_tseries.storage import location as places
from pyspark_tseries.storage.location import Place, place_of
from pyspark_tseries.storage.locks import alone
from pyspark_tseries.storage.staging import read_staged, stage
from pyspark_tseries.store import store as storage
from pyspark_tseries.store.log import table_of
from pyspark_tseries.store.store import Store
from pyspark_tseries.subscribe.delivery import deliver
from pyspark_tseries.subscribe.follower import Follower
from pyspark_tseries.subscribe.position import Initial
from pyspark_tseries.write.task_output import Limits

pytestmark = pytest.mark.timeout(600)

HOUR_US = 3_600_000_000
VALUES = {"value": pa.float64()}


@pytest.fixture
def place(bucket, request):  # noqa: F811 the fixture
    return place_of(bucket.uri(f"some stores/{request.node.name}"), bucket.options)


@pytest.fixture
def store(place):
    return Store.create(place, [VALUE], RetainedRange(limit=1000), min_retention_us=0)


def now_us():
    return time.time_ns() // 1000


def events(place):
    """(series, sequence, value) of all events, as somebody who comes anew sees them."""
    storage._OPEN.clear()
    snapshot, head = Store.open(place).sight()
    found = answer(snapshot, head, Query("allEdits")).table
    return list(
        zip(*(found[name].to_pylist() for name in ("series", "sequence", "value")), strict=True)
    )


def files_of(place, *directory):
    return sorted(path for path, _ in place.listed(place.file(*directory)))


def test_the_python_client_appends_edits_and_queries(place):
    made = TimeSeries.create(
        place.location, VALUES, "limit 5", auto_compact=False, storage_options=dict(place.options)
    )
    for n in range(6):
        assert made.append("a", float(n)).sequence == n
    assert made.edit("a", 4, 40.0).sequence == 6
    rows = pa.table({"series": ["b", "a"], "value": [1.0, 2.0]})
    assert made.append_many(rows)["sequence"].to_pylist() == [0, 7]
    storage._OPEN.clear()
    again = TimeSeries.open(place.location, storage_options=dict(place.options))
    found = again.range_query().select_from("a")
    assert [event.value for event in found.events] == [3.0, 40.0, 5.0, 2.0]
    assert again.verify() == []
    assert again.describe()["path"] == place.location
    assert again.describe()["events"] == 9


def test_a_token_is_stored_once(store, place):
    for _ in range(2):
        store.append(batch(("a", 1), token=("q", 7)))
    assert events(place) == [("a", 0, 0.0)]


def test_a_task_stages_many_rows_as_an_object_and_few_in_its_message(place):
    rows = pa.table({"n": range(100_000)})
    path = place.file("_tseries", "staging", "x.arrow")
    staged = stage(place, rows.to_batches(), rows.schema, path)
    few = stage(place, rows.slice(0, 3).to_batches(), rows.schema, path)
    assert (staged.rows, staged.path, few.path) == (100_000, path, None)
    assert read_staged(place, [staged, few]) == pa.concat_tables([rows, rows.slice(0, 3)])
    place.remove([path, path])
    assert files_of(place, "_tseries", "staging") == []


def test_compaction_leaves_few_files_and_what_is_out_of_range_is_gone(place):
    store = Store.create(place, [VALUE], RetainedRange(limit=3), min_retention_us=0)
    for n in range(8):
        store.append(batch(("a", n, float(n)), (f"b{n}", n, 0.0)))
    before = events(place)
    assert main(["compact", *command(place)]) == 0
    assert events(place) == before
    assert describe(place)["files"] == 1
    assert describe(place)["stored_events"] == 11
    assert verify(place) == []


def command(place):
    pairs = (f"--storage-option={name.lower()}={value}" for name, value in place.options)
    return [place.location, *pairs]


def test_the_command_line_describes_verifies_and_rebuilds(store, place, capsys):
    store.append(batch(("a", 1), ("b", 1)))
    for name in ("describe", "verify"):
        assert main([name, *command(place)]) == 0
    said = capsys.readouterr().out
    assert f"path              {place.location}" in said
    assert said.endswith("sound\n")
    place.remove(files_of(place, "_tseries", "head"))
    storage._OPEN.clear()
    assert main(["verify", *command(place)]) == 1
    assert rebuild(place) == 2
    assert verify(place) == []


def test_a_lost_file_is_found(store, place):
    store.append(batch(("a", 1)))
    place.remove([place.file(store.snapshot().files[0].path)])
    assert [said for said in verify(place) if "is missing" in said]


def test_as_of_shows_the_store_as_it_was(store, place):
    then = now_us() - 100 * HOUR_US
    for n in range(3):
        store.append(batch(("a", n, float(n))), clock=lambda n=n: then + n * HOUR_US)
    for _ in range(2):  # The head of then is made, and made again.
        snapshot, head = sight_as_of(Store.open(place), then + HOUR_US)
        assert answer(snapshot, head, Query()).table["value"].to_pylist() == [0.0, 1.0]


def test_a_subscriber_gets_the_last_entries_and_then_every_event_once(store, place):
    store.append(batch(("a", 1, 1.0), ("a", 2, 2.0), ("b", 1, 3.0)))
    initial = Initial(RetainedRange(limit=1), {})
    start, got = Follower(place, initial).begin(), []
    for n in range(4):
        follower = Follower(place, initial)  # A restarted one, each time.
        end = follower.end(start, None)
        for task in follower.tasks(start, end):
            for rows in deliver(task):
                got += list(
                    zip(rows["series"].to_pylist(), rows["sequence"].to_pylist(), strict=True)
                )
        start = end
        if n == 1:
            store.append(batch(("a", 3, 4.0), ("c", 1, 5.0)))
            storage._OPEN.clear()
    assert got == [("a", 1), ("b", 0), ("a", 2), ("c", 0)]


class Task:
    """What a Spark task knows of itself."""

    get = classmethod(lambda cls: cls())

    def partitionId(self):
        return 0

    def getLocalProperty(self, name):
        return "query"


def unpickled(adapter):
    """As it comes to a task."""
    return cloudpickle.loads(cloudpickle.dumps(adapter))


def test_what_spark_calls_writes_reads_and_follows_a_store_by_its_options(place, monkeypatch):
    monkeypatch.setattr(writer, "TaskContext", Task)
    asked = {f"storageoptions.{name.lower()}": value for name, value in place.options}
    source = DefaultSource({"path": place.location, **asked})
    columns = StructType().add("series", StringType()).add("value", DoubleType())
    rows = pa.record_batch({"series": ["a"] * 20_000, "value": [float(n) for n in range(20_000)]})
    for number in (0, 1, 1):
        writes = unpickled(source.streamWriter(columns, False))
        done = writes.write(iter([rows]))
        assert done.share.few.path is not None
        writes.commit([done], number)
    assert files_of(place, "_tseries", "staging") == []
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


def test_files_that_tasks_wrote_are_published_or_merged(place, monkeypatch):
    monkeypatch.setattr(writer, "TaskContext", Task)
    monkeypatch.setattr(writer, "LIMITS", Limits(rows=5, size=10**6, memory=500))
    asked = {f"storageoptions.{name.lower()}": value for name, value in place.options}
    source = DefaultSource({"path": place.location, "retainedRange": "unlimited", **asked})
    columns = StructType().add("series", "string").add("timestamp", "timestamp")
    us = pa.array(range(20), pa.int64()).cast(pa.timestamp("us", "UTC"))
    for number, names in enumerate(["ab", "cc"]):
        writes = unpickled(source.streamWriter(columns, False))
        rows = [pa.record_batch({"series": [name] * 20, "timestamp": us}) for name in names]
        done = [writes.write(iter([one.slice(0, 12), one.slice(12)])) for one in rows]
        assert all(share.file is not None for share in (task.share for task in done))
        writes.commit(done, number)
        assert files_of(place, "_tseries", "staging") == []
    assert len(files_of(place, "kind=event")) == 3
    assert verify(place) == []
    snapshot, head = Store.open(place).sight()
    found = answer(snapshot, head, Query("allEdits")).table
    keys = list(zip(found["series"].to_pylist(), found["sequence"].to_pylist(), strict=True))
    assert keys == [
        (name, n) for name, end in (("a", 20), ("b", 20), ("c", 40)) for n in range(end)
    ]


def test_an_object_of_any_size_is_copied(place, monkeypatch):
    with place.write(place.file("from")) as file:
        file.write(bytes(range(100)) * 1000)
    for to, most in (("by the store", 100_000), ("by us", 99_999)):
        monkeypatch.setattr(places, "MOST_COPIED", most)
        place.copy(place.file("from"), place.file(to))
        with place.read(place.file(to)) as file:
            assert file.read() == bytes(range(100)) * 1000
    with pytest.raises(FileNotFoundError):
        place.copy(place.file("nothing"), place.file("to"))


def test_upkeep_removes_what_nobody_can_need_and_nothing_else(store, place, monkeypatch):
    monkeypatch.setattr(maintenance, "LOG_VERSIONS", 2)
    for n in range(15):
        store.append(batch(("a", n, float(n))))
    before = events(place)
    maintain(place)
    assert events(place) == before
    assert len(files_of(place, "_delta_log")) >= 15  # All of it is younger than ten minutes.
    old = [file.path for file in Store.open(place).snapshot().files]
    main(["compact", *command(place)])
    orphan = place.file("kind=event", "0000000099-00000000000000ff.parquet")
    with place.write(orphan) as file:
        file.write(b"of a writer that was killed")
    clean(Store.open(place), now_us())
    assert {*map(place.file, old), orphan} <= set(files_of(place, "kind=event"))
    clean(Store.open(place), now_us() + 2 * HOUR_US)  # The log and heads are as if they were older.
    assert len(files_of(place, "_delta_log")) < 15
    assert events(place) == before
    Store.open(place).append(batch(("a", 99, 99.0)))
    assert verify(place) == []


def test_a_storage_that_fails_for_a_moment_does_not_make_cleaning_remove_heads(
    store, place, monkeypatch
):
    for n in range(3):
        store.append(batch(("a", n)))
    heads, read = files_of(place, "_tseries", "head"), Place.read

    def failing(self, path):
        if path in heads[1:]:
            raise OSError("slow down")
        return read(self, path)

    monkeypatch.setattr(Place, "read", failing)
    with pytest.raises(OSError, match="slow down"):
        clean(store, now_us() + 2 * HOUR_US)
    monkeypatch.undo()
    assert files_of(place, "_tseries", "head") == heads
    assert verify(place) == []


def test_one_upkeep_of_a_host_is_at_work_at_a_time(store, place):
    with alone(place, maintenance.UPKEEP_LOCK) as first:
        assert first
        assert maintain(place) is False
    assert maintain(place) is True


def test_the_process_for_upkeep_is_told_how_to_reach_the_store_but_not_by_its_command_line(
    store, place, monkeypatch
):
    store.append(batch(("a", 1)))
    started, real = [], subprocess.Popen

    def start(line, **how):
        started.append(real(line, **how))
        return started[0]

    monkeypatch.setattr(maintenance.subprocess, "Popen", start)
    maintenance._run_apart(place)
    assert "s3cret" not in " ".join(started[0].args)
    assert started[0].returncode == 0


def test_how_a_store_is_reached_may_be_said_by_the_environment_alone(store, place):
    store.append(batch(("a", 1)))
    line = [sys.executable, "-m", "pyspark_tseries", "verify", place.location]
    environment = {**os.environ, **dict(place.options)}
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


def test_of_two_writers_at_once_nothing_is_lost_and_nothing_doubled(store, place):
    environment = {**os.environ, "OPTIONS": json.dumps(dict(place.options))}
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, name, place.location],
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
    found = events(place)
    assert [row[1:] for row in found if row[0] == "one"] == [(n, float(n)) for n in range(8)]
    assert [row[1:] for row in found if row[0] == "two"] == [(n, float(n)) for n in range(8)]
    both = [row for row in found if row[0] == "both"]
    assert [row[1] for row in both] == list(range(16))
    assert sorted(row[2] for row in both) == sorted([float(n) for n in range(8)] * 2)
    assert verify(place) == []


def test_who_lost_the_race_for_a_log_entry_numbers_its_batch_again(store, place, monkeypatch):
    store.append(batch(("a", 1, 0.0)))
    real, waiting = Store._publish, [batch(("a", 2, 1.0))]

    def publish(self, attempt, token, synced):
        if waiting:
            rows = waiting.pop()
            Store(self.place, table_of(self.place)).append(rows)
        return real(self, attempt, token, synced)

    monkeypatch.setattr(Store, "_publish", publish)
    store.append(batch(("a", 3, 2.0)))
    assert events(place) == [("a", 0, 0.0), ("a", 1, 1.0), ("a", 2, 2.0)]
    assert verify(place) == []


def test_a_wrong_bucket_or_prefix_is_said_so(bucket, place):  # noqa: F811 the fixture
    with pytest.raises(NoSuchStore, match=f"there is no store at '{place.location}'"):
        Store.open(place)
    wrong = place_of("s3://no-such-bucket/a", bucket.options)
    for touch in (Store.open, lambda place: Store.create(place, [VALUE], None)):
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
def test_wrong_credentials_are_said_so_without_showing_them(refusing, name, done):
    path = f"s3://{name}/a"
    with pytest.raises(UnusableStore, match="next step: check the path and") as error:
        TimeSeries.create(path, VALUES, storage_options=refusing)
    message = "".join(traceback.format_exception(error.value))
    assert f"'{path}' cannot be {done}" in message
    assert "InvalidAccessKeyId" in message
    assert "AKIAWRONG" not in str(error.value)
    assert "s3cret" not in message


def test_what_another_tool_does_there_is_judged_as_on_a_disk(store, place):
    for number in range(3):
        store.append(batch(("a", number), ("\U00020bb7", number)))
    before = keys(store)
    table_of(place).optimize.compact()
    assert keys(store) == before
    assert store.append(batch(("a", 3))) is not None
    before = keys(store)
    table_of(place).delete("sequence = 1")
    for use in (store.snapshot, lambda: store.append(batch(("a", 4)))):
        with pytest.raises(UnusableStore, match=r"is a DELETE by .* pyspark_tseries repair s3://"):
            use()
    assert "a DELETE by" in repair(place).mended[0]
    assert keys(store) == before
    assert store.append(batch(("a", 4))) is not None
    assert verify(place) == []


def test_the_object_stores_own_clock_says_that_a_writers_is_ahead(store, place):
    now = storage.now_us()
    for ahead in (2 * HOUR_US, 60 * 365 * 24 * HOUR_US):
        with pytest.raises(WrongClock, match="set this machine's clock"):
            store.append(batch(("a", None)), clock=lambda ahead=ahead: now + ahead)
    store.append(batch(("a", None)), clock=lambda: now - 10 * 365 * 24 * HOUR_US)
    assert store.append(batch(("a", None)), clock=lambda: now) is not None
    assert verify(place) == []


def keys(store):
    found = answer(store.snapshot(), store.head()[1], Query()).table
    return list(zip(found["series"].to_pylist(), found["sequence"].to_pylist(), strict=True))


def test_a_change_that_slips_in_before_a_commit_is_found_all_the_same(store, place, monkeypatch):
    """Delta lets an append pass a rival's commit that it does not conflict with."""
    store.append(batch(("a", 1)))
    real = Store._publish

    def publish(self, attempt, token, synced):
        monkeypatch.setattr(Store, "_publish", real)
        write_deltalake(
            table_of(place),
            table_of(place).to_pyarrow_table(),
            mode="append",
        )
        return real(self, attempt, token, synced)

    monkeypatch.setattr(Store, "_publish", publish)
    store.append(batch(("a", 2)))
    with pytest.raises(UnusableStore, match="is a WRITE by 'delta-rs") as error:
        store.snapshot()
    assert "restore(" not in str(error.value), "it would take the commit after it"
    repair(place)
    assert keys(store) == [("a", 0), ("a", 1)]
    assert verify(place) == []

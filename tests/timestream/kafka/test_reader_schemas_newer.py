"""A restart reads by the latest schema what the recorded one cannot, and nothing else."""

import json

import pyarrow as pa
import pytest
from schema_registry import Mode, Reference, serve_schema_registry
from timestream.builders import options as build_options
from timestream.builders import projection

from pyspark_timestream import CheckpointMismatch
from pyspark_timestream.kafka import registry as module
from pyspark_timestream.kafka.driver.driver import StreamDriver
from pyspark_timestream.kafka.reader_schemas import load_schemas
from pyspark_timestream.kafka.schemas import ReaderSchema


def record(kind, *more):
    fields = [{"name": name, "type": each} for name, each in (("x", kind), *more)]
    return json.dumps({"type": "record", "name": "A", "fields": fields})


SYMBOLS = {"type": "enum", "name": "E", "symbols": ["a"]}
STRING = ("x", pa.string())


@pytest.fixture
def stub(monkeypatch):
    monkeypatch.setattr(module, "_SCHEMAS", {})
    with serve_schema_registry() as served:
        yield served


def start(stub, recorded, *columns, **more):
    """The readers of a query's start, as its offset keeps them."""
    raw = {"schemaRegistry.url": stub.url, "valueFormat": "avro", "valueSubject": "t-value", **more}
    given = load_schemas(build_options(**raw))
    driver = StreamDriver(given, projection=projection(given, *columns))
    read_from = {side: ReaderSchema.from_json(each) for side, each in recorded.items()}
    return {side: each.to_json() for side, each in driver.pin_schemas(read_from).items()}


def versions(readers, side="value"):
    found, kept = [], readers[side]
    while kept is not None:
        found.append(kept["version"])
        kept = kept.get("newer")
    return found


def test_a_restart_keeps_the_recorded_schema_while_it_can_read_the_latest(stub):
    stub.register("t-value", record("int"))
    recorded = start(stub, {}, ("x", pa.int64()))
    stub.register("t-value", record("long", ("new", "string")))
    assert start(stub, recorded, ("x", pa.int64())) == recorded
    assert versions(recorded) == [1]


def test_a_restart_reads_what_the_recorded_schema_cannot_by_the_latest_and_records_it(stub):
    stub.register("t-value", record("string"))
    recorded = start(stub, {}, STRING)
    stub.register("t-value", record(SYMBOLS))
    second = start(stub, recorded, STRING)
    assert versions(second) == [1, 2]
    # From here on the checkpoint has both, even if more is registered later.
    stub.register("t-value", record("string", ("new", "int")))
    assert start(stub, second, STRING) == second
    second["value"]["newer"]["fingerprint"] = "sha256:0"
    with pytest.raises(CheckpointMismatch, match="version 2 of 't-value'"):
        start(stub, second, STRING)


def test_a_restart_does_not_read_by_a_latest_schema_that_lacks_a_wanted_column(stub):
    stub.register("t-value", record("string", ("y", "int")))
    recorded = start(stub, {}, STRING, ("y", pa.int32()))
    stub.register("t-value", record(SYMBOLS))
    assert versions(start(stub, recorded, STRING, ("y", pa.int32()))) == [1]
    stub.register("t-value", record("long", ("y", "int")))
    assert versions(start(stub, recorded, STRING, ("y", pa.int32()))) == [1]
    stub.register("t-value", record(SYMBOLS, ("y", "int")))
    assert versions(start(stub, recorded, STRING, ("y", pa.int32()))) == [1, 4]


def test_a_subject_that_is_gone_leaves_the_recorded_schema(stub):
    stub.register("t-value", record("string"))
    recorded = start(stub, {}, STRING)
    stub.delete("t-value", 1)
    assert start(stub, recorded, STRING) == recorded


@pytest.mark.parametrize(
    ("text", "references"),
    [
        (record("Unknown"), ()),
        ('{"type": "record"}', ()),
        ("not JSON", ()),
        (record("B"), (Reference("B", "broken", 1),)),
    ],
)
def test_a_latest_schema_that_is_none_stops_no_restart_and_is_told_once(
    stub, caplog, text, references
):
    stub.register("broken", "not JSON")
    number = stub.register("t-value", record("string"))
    stub.register("t-key", record("string"))
    keys = {"keyFormat": "avro", "keySubject": "t-key"}
    recorded = start(stub, {}, STRING, ("key.x", pa.string()), **keys)
    stub.register("t-value", text, references=references)
    stub.register("t-key", record(SYMBOLS))
    second = start(stub, recorded, STRING, ("key.x", pa.string()), **keys)
    assert (versions(second), versions(second, "key")) == ([1], [1, 2])
    line, _ = caplog.messages
    assert line.startswith("the latest schema of subject 't-value' cannot be used, so values are")
    assert f"read only by schema {number}, as before (" in line


def test_a_registry_that_refuses_the_latest_schema_stops_no_restart(stub, caplog, monkeypatch):
    stub.register("t-value", record("string"))
    recorded = start(stub, {}, STRING)
    ask = module.SchemaRegistry.fetch_latest

    def refuse(*args):
        stub.mode = Mode.FORBIDDEN
        return ask(*args)

    monkeypatch.setattr(module.SchemaRegistry, "fetch_latest", refuse)
    assert start(stub, recorded, STRING) == recorded
    (line,) = caplog.messages
    assert "subject 't-value' cannot be used" in line
    assert "403" in line


def test_the_schema_of_an_option_is_never_replaced(stub):
    stub.register("t-value", record(SYMBOLS))
    given = {"readerSchema": record("string"), "valueSubject": "t-value"}
    recorded = start(stub, {}, STRING, **given)
    assert start(stub, recorded, STRING, **given) == recorded

"""A store's files as other tools than delta-rs rewrite them, entry in the log included."""

import json
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pyspark_timestream.core.processes import read_wall_clock


def rewritten_by_spark(table):
    """As Spark's Delta writes it, with its settings as they come: times as INT96, no bounds."""
    rewritten(table, use_deprecated_int96_timestamps=True)


def in_milliseconds(table):
    rewritten(table, coerce_timestamps="ms", allow_truncated_timestamps=True)


def with_columns_backwards(table):
    rewritten(table, columns=slice(None, None, -1))


def rewritten(table, columns=slice(None), **parquet):
    path, version = Path(table.table_uri.removeprefix("file://")), table.version()
    rows, now_ms = table.to_pyarrow_table(), read_wall_clock() // 1000
    info = {
        "timestamp": now_ms,
        "operation": "OPTIMIZE",
        "operationParameters": {"predicate": "[]", "zOrderBy": "[]", "auto": False},
        "readVersion": version,
        "engineInfo": "Apache-Spark/4.0.1 Delta-Lake/4.0.0",
        "txnId": str(uuid.uuid4()),
    }
    actions = [{"commitInfo": info}]
    for kind in pc.unique(rows["kind"]).to_pylist():
        mine = rows.filter(pc.equal(rows["kind"], kind)).drop_columns("kind")
        mine = mine.select(mine.column_names[columns])
        to = f"kind={kind}/part-00000-{uuid.uuid4()}.c000.snappy.parquet"
        pq.write_table(mine, path / to, compression="snappy", **parquet)
        size, stats = (path / to).stat().st_size, json.dumps({"numRecords": mine.num_rows})
        added = {"path": to, "size": size, "modificationTime": now_ms, "stats": stats}
        actions.append({"add": {**added, "partitionValues": {"kind": kind}, "dataChange": False}})
    for old in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        gone = {"path": old["path"], "deletionTimestamp": now_ms, "size": old["size_bytes"]}
        kind = {"kind": old["partition.kind"]}
        actions.append({"remove": {**gone, "partitionValues": kind, "dataChange": False}})
    lines = "".join(json.dumps(action) + "\n" for action in actions)
    (path / "_delta_log" / f"{version + 1:020d}.json").write_text(lines)
    table.update_incremental()

"""A log that names files outside of its store is refused; they are neither read nor removed."""

import json
import shutil

import pytest
from deltalake import DeltaTable
from tseries.builders import batch, forget_stores, new_store

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.compactor import compact
from pyspark_tseries.maintain.repair import repair
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.storage.location import is_inside_store
from pyspark_tseries.store.log_entries import NewEntry, format_entry, seal
from pyspark_tseries.store.store import Store

NOW = 1_900_000_000_000_000
OUTSIDE = [
    "../other.parquet",
    "kind=event/../../other.parquet",
    "kind=event/..%2F..%2Fother.parquet",
    "kind=event/%2e%2e/%2E%2E/other.parquet",
    "%2e%2e/other.parquet",
    "kind=event/%252e%252e/%252e%252e/other.parquet",
    "..\\other.parquet",
    "kind=event//other.parquet",
    "./other.parquet",
    "{there}",
    "/{there}",
    "file://{there}",
    "file:{there}",
    "s3://bucket/other.parquet",
    "",
]


@pytest.fixture
def location(tmp_path):
    """A store, and beside it a file of another one."""
    other = new_store(tmp_path / "other")
    other.append(batch(("secret", 1)))
    (file,) = (tmp_path / "other" / "kind=event").iterdir()
    shutil.copy(file, tmp_path / "other.parquet")
    store = new_store(tmp_path / "s")
    for n in range(3):
        store.append(batch(("a", n)))
    forget_stores()
    return tmp_path


def name(location, path, action, forged=False):
    """Lets the log of the store name `path`, as its own writer would if `forged`."""
    path = path.replace("{there}", str(location / "other.parquet"))
    log = location / "s" / "_delta_log"
    version = DeltaTable(location / "s").version()
    lines = [json.loads(line) for line in (log / f"{version:020d}.json").read_text().splitlines()]
    info, add = lines[0], next(line["add"] for line in lines if "add" in line)
    if not forged:
        del info["commitInfo"]["tseries"]
    else:
        info["commitInfo"]["tseries"] |= {"checked": version, "lines": 2, "crc32": "0" * 8}
    said = {**add, "path": path, "dataChange": False}
    if action == "remove":
        said = {name: said[name] for name in ("path", "dataChange", "partitionValues", "size")}
        said["deletionTimestamp"] = 0
    lines = (json.dumps(line, separators=(",", ":")) for line in (info, {action: said}))
    entry = "\n".join(lines).encode() + b"\n"
    (log / f"{version + 1:020d}.json").write_bytes(seal(entry) if forged else entry)
    return path


@pytest.mark.thorough
@pytest.mark.parametrize("forged", [False, True])
@pytest.mark.parametrize("path", OUTSIDE)
def test_a_log_entry_that_names_a_file_outside_of_the_store_is_refused(location, path, forged):
    path = name(location, path, "add", forged)
    for use in (Store.open, compact, lambda where: Store.open(where).append(batch(("a", 9)))):
        forget_stores()
        with pytest.raises(UnusableStore) as error:
            use(str(location / "s"))
        assert f"names the file '{path}'" in str(error.value)
        assert "it was not read" in str(error.value)
    assert any("it was not read" in line for line in map(str, verify(str(location / "s"))))
    assert repair(str(location / "s")).left == ()
    assert verify(str(location / "s")) == []
    forget_stores()
    Store.open(str(location / "s")).append(batch(("a", 9)))
    assert (location / "other.parquet").exists()


@pytest.mark.parametrize("path", OUTSIDE[:5])
def test_outside_file_of_a_checked_entry_is_not_read(location, path):
    name(location, path, "add", forged=True)
    name_of_nothing = location / "s" / "_delta_log" / f"{5:020d}.json"
    name_of_nothing.write_bytes(format_entry(NewEntry(), NewEntry().info(4), 0))
    with pytest.raises(UnusableStore, match="it was not read"):
        Store.open(str(location / "s")).snapshot()


@pytest.mark.parametrize("path", OUTSIDE[:5])
def test_cleaning_removes_no_file_outside_of_the_store(location, path):
    store = Store.open(str(location / "s"))
    name(location, path, "remove", forged=True)
    remove_obsolete_files(store, NOW)
    assert (location / "other.parquet").exists()


def test_paths_of_files_of_every_tool_lie_inside():
    own = "kind=event/0000000003-0000000070-000000000000000a_0000.parquet"
    spark = "kind=edit/part-00000-5a3e7c1d-7a3f-4b61-9f6e-2f1a43e0b1c2.c000.snappy.parquet"
    assert all(map(is_inside_store, (own, spark, "xY/part-00001-a=b.zstd.parquet")))
    assert not any(
        is_inside_store(path.replace("{there}", "/tmp/other.parquet")) for path in OUTSIDE
    )

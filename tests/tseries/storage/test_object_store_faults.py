"""An object store that fails for a moment, or answers too late, loses and doubles nothing."""

import time
from functools import partial

import pytest
from lengths import outside_ci
from tseries.builders import VALUE, batch, forget_stores
from tseries.limits import set_limits
from tseries.meetings import Meeting, fail, rival
from tseries.object_store import bucket  # noqa: F401 a fixture

from pyspark_tseries.errors import UnusableStore
from pyspark_tseries.maintain import compactor
from pyspark_tseries.maintain.background import remove_obsolete_files
from pyspark_tseries.maintain.verify import verify
from pyspark_tseries.model.ranges import RetainedRange
from pyspark_tseries.storage.location import Location, parse_location
from pyspark_tseries.store.store import Store

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def store(bucket, tmp_path, without_pauses):  # noqa: F811 the fixture
    location = parse_location(bucket.uri(f"faults/{tmp_path.name}"), bucket.options)
    made = Store.create(location, [VALUE], RetainedRange(limit=1000), min_retention_us=0)
    made.append(batch(("a", 1)))
    return made


def sequences(store):
    forget_stores()
    assert verify(store.location) == []
    return int(Store.open(store.location).index().lookup(["a"])["last_sequence"][0])


@pytest.mark.parametrize("token", [("q", 0), *outside_ci(None)])
@pytest.mark.parametrize("stored", [False, True])
def test_a_commit_whose_request_failed_is_made_once(store, stored, token):
    faults = [partial(fail, OSError("slow down")), partial(fail, OSError("timed out"))]
    failing = Meeting(store, **{"after" if stored else "before": faults})
    attempt = failing.append(batch(("a", 2), token=token))
    assert attempt.numbered[0].sequence.tolist() == [1]
    assert sequences(store) == 1


def test_a_commit_that_is_carried_out_late_finds_its_files(store):
    """The request failed for its sender, who tries again; then the storage carries it out."""

    class Late(Meeting):
        def commit_prepared(self, attempt, mark, *, synced, version):
            if not late:
                late.append(attempt)
                raise OSError("timed out")
            rival(self).commit_prepared(late[0], {}, synced=synced)
            super().commit_prepared(attempt, mark, synced=synced, version=version)

    late = []
    attempt = Late(store).append(batch(("a", 2)))
    assert attempt is late[0]
    assert sequences(store) == 1


@pytest.mark.outside_ci
def test_append_retries_storage_failures_and_reports_lasting_ones(store, monkeypatch):
    real, faults = Location.write, [OSError("slow down s3cret-example")] * 3

    def write(self, path):
        if faults:
            raise faults.pop()
        return real(self, path)

    monkeypatch.setattr(Location, "write", write)
    store.append(batch(("a", 2)))
    assert sequences(store) == 1
    faults += [OSError("slow down s3cret-example")] * 100
    with pytest.raises(UnusableStore, match=r"cannot be written.*slow down \[hidden\]") as error:
        store.append(batch(("a", 3)))
    assert error.value.__cause__ is None
    faults.clear()
    assert sequences(store) == 1


@pytest.mark.outside_ci
def test_failed_compaction_request_keeps_files_that_may_be_needed(store, monkeypatch):
    for n in range(2, 5):
        store.append(batch(("a", n)))
    real = compactor.replace_files

    def replace(*args):
        real(*args)
        raise OSError("timed out")

    monkeypatch.setattr(compactor, "replace_files", replace)
    done = compactor.merge_file_groups(store, time.time_ns() // 1000, everything=True)
    assert done.files_after == 1
    assert sequences(store) == 3


def test_append_that_stood_still_writes_its_removed_files_again(store, monkeypatch):
    """The writer's machine was suspended for two hours, after it had written the new head."""
    set_limits(monkeypatch, fresh_files_s=-1)
    late_us = (time.time_ns() + 2 * 3600 * 10**9) // 1000
    sweep = partial(remove_obsolete_files, rival(store), late_us)
    Meeting(store, before=[sweep]).append(batch(("a", 2)))
    assert sequences(store) == 1


@pytest.mark.outside_ci
def test_compaction_that_stood_still_merges_again(store, monkeypatch):
    store.append(batch(("a", 2)))
    write_all, removed = compactor.Merge.write_all, []

    def write(merge):
        files = write_all(merge)
        if not removed:
            removed.extend(files)
            store.location.remove([store.location.file(files[0].path)])
        return files

    monkeypatch.setattr(compactor.Merge, "write_all", write)
    assert compactor.merge_file_groups(store, time.time_ns() // 1000, everything=True).files_after
    assert removed
    assert sequences(store) == 1

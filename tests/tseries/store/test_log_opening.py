"""A store opens while another process shortens its log."""

import pytest
from deltalake.exceptions import DeltaError

from pyspark_tseries import TimeSeries, UnusableStore
from pyspark_tseries.storage.location import parse_location
from pyspark_tseries.store import log


@pytest.mark.parametrize("failures", [1, 2])
def test_a_list_of_the_log_that_misses_entries_is_asked_for_once_more(
    tmp_path, monkeypatch, failures
):
    TimeSeries.create(tmp_path / "s", {}, "unlimited")
    table, left = log.DeltaTable, [DeltaError("a gap between 1 and 3")] * failures

    def open_while_entries_go(*arguments, **settings):
        if left:
            raise left.pop()
        return table(*arguments, **settings)

    monkeypatch.setattr(log, "DeltaTable", open_while_entries_go)
    location = parse_location(str(tmp_path / "s"))
    if failures == 1:
        assert log.open_table(location).version() == 0
    else:
        with pytest.raises(UnusableStore, match="cannot be opened as a store: a gap between"):
            log.open_table(location)


@pytest.mark.parametrize("error", [DeltaError("a gap between 1 and 3"), FileNotFoundError("3")])
def test_a_list_of_an_object_stores_log_is_asked_for_once_more(monkeypatch, error):
    found, errors = object(), [error]

    def open_while_entries_go(uri, storage_options):
        if errors:
            raise errors.pop()
        assert (uri, storage_options["AWS_REGION"]) == ("s3://bucket/s", "eu-west-1")
        return found

    monkeypatch.setattr(log, "DeltaTable", open_while_entries_go)
    assert log.load_table(parse_location("s3://bucket/s", {"AWS_REGION": "eu-west-1"})) is found

"""The times that a producer notes, and the client settings that it takes."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pyspark_timestream.core.declarations import hide_secrets
from pyspark_timestream.core.instants import FINAL_US
from pyspark_timestream.errors import OptionError
from pyspark_timestream.producer.producer import _parse_mark_time, _require_idempotence


@pytest.mark.parametrize(
    ("time", "us"),
    [
        (datetime(1970, 1, 1, 0, 0, 1, 5, UTC), 1_000_005),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01 00:00:00", 0),
        ("9999-12-31T23:59:59Z", FINAL_US),
    ],
)
def test_a_time_is_a_datetime_with_a_zone_or_a_text(time: datetime | str, us: int) -> None:
    assert _parse_mark_time(time) == us


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (datetime(2024, 1, 1), "add tzinfo=UTC"),  # noqa: DTZ001
        (1_700_000_000, "is not a time"),
        ("yesterday", "not an ISO-8601 instant"),
        (datetime(9999, 12, 31, 23, 59, 59, 1, UTC), "is outside"),
    ],
)
def test_what_is_no_instant_is_refused_with_a_way_out(time: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _parse_mark_time(time)  # type: ignore[arg-type]


def test_idempotence_is_on_and_cannot_be_turned_off() -> None:
    assert _require_idempotence({"a": 1}) == {"a": 1, "enable.idempotence": True}
    assert _require_idempotence({"enable.idempotence": "true"})["enable.idempotence"] is True
    for off in (False, "false", "False", 0):
        with pytest.raises(OptionError, match=r"enable\.idempotence.*behind a mark"):
            _require_idempotence({"enable.idempotence": off})


def test_secrets_are_hidden_wherever_they_are_quoted() -> None:
    config = {"sasl.password": "pa55", "sasl.username": "me", "on_delivery": print}
    assert hide_secrets("me and pa55", config) == "me and [hidden]"

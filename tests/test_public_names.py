"""The packages' public names: adding or losing one is a decision, not an accident."""

import pyspark_timestream
import pyspark_tseries


def test_the_public_names_of_timestream() -> None:
    names = {"DefaultSource", "PunctuatedProducer", "advance_time", "await_end", "import_ctis"}
    names |= {"configure_spark", "explain_time", "order_by_time", "shift_time", "why"}
    names |= {"BrokerUnreachable", "CheckpointMismatch", "CheckpointUnreadable", "DataLost"}
    names |= {"DeliveryFailed", "OptionError", "SchemaRefused", "SettingRefused"}
    names |= {"TimestreamError", "ViolationFound", "WrongInterpreter"}
    assert set(pyspark_timestream.__all__) == names
    assert all(getattr(pyspark_timestream, name) for name in names)


def test_the_public_names_of_tseries() -> None:
    errors = {"IncompatibleValue", "InvalidQuery", "NoSuchEvent", "NoSuchStore", "UpdateFailed"}
    errors |= {"PermissionDenied", "StoreBusy", "StoreMismatch", "TseriesError", "UnusableStore"}
    errors |= {"OutOfOrder", "WrongClock"}
    results = {"Event", "EventMetadata", "QueryResult"}
    names = {"DefaultSource", "RangeQuery", "TimeSeries", "describe", *errors, *results}
    assert set(pyspark_tseries.__all__) == names
    assert all(getattr(pyspark_tseries, name) for name in names)

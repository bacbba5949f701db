"""Random queries of the model, and the same as a user builds them."""

from datetime import UTC, datetime, timedelta

from tseries.store_model import Asked, Range

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONG_US = 10_000_000


def instant(us):
    return EPOCH + timedelta(microseconds=us)


def micros(moment):
    return (moment - EPOCH) // timedelta(microseconds=1)


def some_amount(chance, words):
    word = chance.choice(words)
    if word == "time":
        return word, 1_000_000 + chance.randint(-4000, 60_000)
    if word.endswith("_us"):
        return word, chance.choice([0, 1, 1000, 4000, 20_000, LONG_US, 2**55])
    return word, chance.choice([0, 0, 1, 2, 3, 5, 9, 40]) if word != "start" else 0


def some_range(chance):
    ends = ["start", "sequence", "time", "last", "last_us"]
    spans = [*ends, "next", "next_us", "previous", "previous_us"]
    anchor = some_amount(chance, ends) if chance.random() < 0.7 else ("start", 0)
    span = some_amount(chance, spans) if chance.random() < 0.7 else ("last", 0)
    return Range(anchor, span)


def some_query(chance):
    kind = chance.choice(["values", "allEdits", "latestEdits"])
    edits = some_range(chance) if chance.random() < 0.3 else None
    limit = chance.choice([None, None, 0, 1, 2, 5])
    return Asked(kind, some_range(chance), edits, limit)


def built(query, asked):
    """`asked` on top of an empty `query`, step by step."""
    if asked.kind != "values":
        query = query.for_edits()
    query = ranged(query, asked.view)
    if asked.kind == "latestEdits":
        query = query.latest_edits()
    elif asked.edits is not None:
        query = query.edit_range() if asked.kind == "values" else query.all_edits()
    if asked.edits is not None:
        query = ranged(query, asked.edits)
    return query if asked.limit is None else query.limit(asked.limit)


def ranged(query, range_):
    """`query` with the ends of `range_`."""
    word, number = range_.anchor
    anchors = {
        "start": lambda: query.from_start(),
        "sequence": lambda: query.from_(number),
        "time": lambda: query.from_(instant(number)),
        "last": lambda: query.from_last(number),
        "last_us": lambda: query.from_last(timedelta(microseconds=number)),
    }
    query = anchors[word]()
    end, count = range_.span
    span = timedelta(microseconds=count) if end.endswith("_us") else count
    ends = {
        "start": lambda: query.to_start(),
        "sequence": lambda: query.to(count),
        "time": lambda: query.to(instant(count)),
        "last": lambda: query.until_last(span),
        "last_us": lambda: query.until_last(span),
        "next": lambda: query.next(span),
        "next_us": lambda: query.next(span),
        "previous": lambda: query.previous(span),
        "previous_us": lambda: query.previous(span),
    }
    return ends[end]()

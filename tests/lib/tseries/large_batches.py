"""Large batches, as the tasks of a write leave them."""

import itertools

import pyarrow as pa
from tseries.builders import staged

from pyspark_tseries.write.batch import Batch
from pyspark_tseries.write.task_output import OptimisticNumber, SpillLimits, write_task_output

SCHEMA = staged(("a", 1)).schema

NOW = 100

TINY = SpillLimits(rows=0, size=0, memory=1)

own_numbers = itertools.count()


def table(rows):
    """Rows (series, us or None, sequence of the edited original or None, value, author)."""
    columns = list(zip(*rows, strict=True)) or [[]] * 5
    series, us, edited, value, author = (list(column) for column in columns)
    arrays = [series, pa.array(us, pa.int64()).cast(SCHEMA.field("timestamp").type)]
    return pa.table([*arrays, author, edited, value], schema=SCHEMA)


def output(location, rows, expected, limits=TINY, sizes=(3,)):
    """The share of a task that gets `rows` in record batches of these sizes in turn."""
    whole, parts = table(rows), []
    for size in itertools.cycle(sizes):
        if whole.num_rows == 0:
            break
        parts += whole.slice(0, size).combine_chunks().to_batches()
        whole = whole.slice(size)
    name = f"task{next(own_numbers)}"
    return write_task_output(
        location, parts, SCHEMA, expected, "me", unique_name=name, limits=limits
    )


def large(tasks, **options):
    policy = options.pop("out_of_order", "fail")
    return Batch(SCHEMA.empty_table(), policy, "me", tasks=tuple(tasks), **options)


def at(series, us, value=0.0):
    return series, us, None, value, None


def as_tasks(store, count, rows):
    """The rows as shares of this many tasks, forecast as the sink does it."""
    head_id, index = store.head_id(), store.index()
    expected = OptimisticNumber(
        head_id, index.metadata.commit + 1, max(NOW, index.metadata.commit_us)
    )
    return [output(store.location, rows[n::count], expected) for n in range(count)]

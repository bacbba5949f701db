"""The options of writes."""

from dataclasses import dataclass, field

from pyspark_timestream.connector.options import boolean, choice, option, text, whole_number
from pyspark_tseries.model.retention import RetainedRange
from pyspark_tseries.options.values import (
    DELAY,
    DURABILITIES,
    FUTURE,
    INITIAL,
    NAME,
    PATH,
    RANGE,
    location_with,
    os_user,
)
from pyspark_tseries.storage.location import Location, OptionPairs

__all__ = ["WriteOptions"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How a DataFrame is added to a store.

    Column names are None where the option was not given: the default name is then used if the
    DataFrame has such a column.
    """

    path: str = option(
        "path",
        PATH,
        description=(
            "the store; `.start(path)` or `.save(path)`; an absolute path or a URI, since Spark's "
            "processes have their own working directories"
        ),
        help="name the store in .start(path) or .save(path)",
    )
    series_column: str | None = option(
        "seriesColumn",
        NAME,
        None,
        description="the column that names the series; none: `series`",
        excludes=("seriesName",),
    )
    series_name: str | None = option(
        "seriesName", text, None, description="one constant series instead"
    )
    timestamp_column: str | None = option(
        "timestampColumn",
        NAME,
        None,
        description=(
            "event time; none: `timestamp` if there is one; null or absent: assigned at commit"
        ),
    )
    edit_of_column: str | None = option(
        "editOfColumn",
        NAME,
        None,
        description=(
            "none: `edit_of` if there is one; its sequence makes a row an edit of that original of "
            "its series, null an append"
        ),
    )
    cti_column: str | None = option(
        "ctiColumn",
        NAME,
        None,
        description=(
            "CTIs: a row in which it is set is not stored, and moves the CTI that the query "
            "commits with; none: `cti` if there is a timestamp column of that name, and no such "
            "value column in the store"
        ),
    )
    cti_delay_us: int | None = option(
        "ctiDelay",
        DELAY,
        None,
        description=(
            "a stream commits its CTI with each batch: that of `ctiColumn`, else Spark's watermark "
            "in a checkpoint on this machine, minus this; `0 seconds` for the end of a window as "
            "`timestamp`, the window's length for its start; none: only what `ctiColumn` has"
        ),
        effect="stream",
    )
    author_column: str | None = option(
        "authorColumn", NAME, None, description="who wrote the row; none: `author` if there is one"
    )
    author: str | None = option(
        "author",
        text,
        None,
        description=(
            "who wrote rows without an author; none: the OS user of the driver's Python worker"
        ),
    )
    retained_range: RetainedRange | None = option(
        "retainedRange",
        RANGE,
        None,
        description=(
            "how much a series keeps, set when the store is created: `limit 10`, `last 30D`, both, "
            "or `unlimited`; none: `limit 10`"
        ),
    )
    subscription_range: RetainedRange | None = option(
        "subscriptionRange",
        INITIAL,
        None,
        description=(
            "what subscribers get first unless they ask for something else, set when the store is "
            "created; none: `limit 1`"
        ),
    )
    out_of_order: str = option(
        "outOfOrder",
        choice("fail", "drop", "adjust"),
        "fail",
        description=(
            "a timestamp before the series' newest of earlier commits: `fail`, `drop`, `adjust` "
            "(raised to the newest)"
        ),
    )
    max_future_us: int | None = option(
        "maxFuture",
        FUTURE,
        None,
        description=(
            "how far a timestamp may lie after the time of its commit, or `none`; none: in a store "
            "whose retained range has `last`, that duration, at least `1 day`"
        ),
    )
    future_policy: str = option(
        "futurePolicy",
        choice("fail", "drop"),
        "fail",
        description=(
            "rows that are further ahead: `fail`, or `drop`, which leaves them out and counts them"
        ),
    )
    missing_original: str = option(
        "missingOriginal",
        choice("fail", "drop"),
        "fail",
        description=(
            "an edit whose original does not exist, is itself an edit or was discarded: `fail`, "
            "`drop`"
        ),
    )
    clock: str = option(
        "clock",
        choice("wall", "event"),
        "wall",
        description=(
            "assigned timestamps (none given; every edit): `wall` = commit time, or the series' "
            "newest where that is later; `event` = the series' newest"
        ),
    )
    merge_schema: bool = option(
        "mergeSchema",
        boolean,
        False,
        description=(
            "a value column that the store lacks is added to it, before anything is written; "
            "earlier events have nulls there"
        ),
    )
    auto_compact: bool = option(
        "autoCompact",
        boolean,
        True,
        description=(
            "every 32 commits a background process merges small files and cleans log, staging and "
            "head files"
        ),
    )
    durability: str = option(
        "durability",
        choice(*DURABILITIES),
        "fsync",
        description=(
            "`fsync`: on a local path a commit is on the disk, and survives a power loss, when it "
            "is acknowledged; `os`: the operating system writes it there later, usually within "
            "half a minute"
        ),
    )
    txn_app_id: str | None = option(
        "txnAppId",
        text,
        None,
        description="with `txnVersion`: a batch write of that number happens once",
        effect="batch",
        needs=("txnVersion",),
    )
    txn_version: int | None = option(
        "txnVersion",
        whole_number(),
        None,
        description="with `txnAppId`: the number, not below 0",
        effect="batch",
        needs=("txnAppId",),
    )
    principal: str | None = option(
        "principal",
        text,
        None,
        description=(
            "who writes, where the store has a policy: then the author too; none: the OS user of "
            "the driver's Python worker"
        ),
    )

    storage: OptionPairs = field(default=(), repr=False)

    @property
    def location(self) -> Location:
        """The location of the store."""
        return location_with(self.path, self.storage)

    @property
    def synced(self) -> bool:
        """True if an acknowledged commit survives a power loss."""
        return self.durability == "fsync"

    def author_and_principal(self) -> tuple[str, str]:
        """The author of rows that name none, and the principal."""
        principal = os_user() if self.principal is None else self.principal
        return principal if self.author is None else self.author, principal

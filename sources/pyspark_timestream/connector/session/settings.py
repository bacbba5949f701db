"""The settings that a Spark session needs for these formats, each with its reason."""

import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession, is_remote

from pyspark_timestream.connector.session.interpreter import (
    INTERPRETER_VARIABLES,
    find_interpreter_fault,
    find_worker_command,
    is_this_interpreter,
    use_this_interpreter,
)
from pyspark_timestream.connector.session.spark_home import SPARK_HOME, use_installed_pyspark
from pyspark_timestream.errors import WrongInterpreter, compose_message

__all__ = [
    "HOME",
    "INTERPRETER",
    "SETTINGS",
    "Setting",
    "configure_spark",
    "explain_missing_format",
    "is_connect_client",
    "spark_settings",
    "warn_of_interpreter",
]

_SERVER_SCHEME: Final = "sc://"
"""Of the URL of a Spark Connect server; another URL starts one in this process."""

_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""Set in the processes that spark-submit starts: their JVM runs already."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that a session needs.

    Attributes:
        name: of Spark's configuration, or of an environment variable.
        value: the value that `configure_spark` sets.
        reason: the consequence of leaving it out.
    """

    name: str
    value: str
    reason: str


INTERPRETER: Final = Setting(
    "PYSPARK_PYTHON",
    "the running Python",
    "an environment variable, which must be there when Spark starts. Without it Spark looks for "
    "the formats with the `python3` of PATH, and does not find what is installed in a virtual "
    "environment that is not activated: IDE, cron, notebook, `venv/bin/python job.py`",
)

HOME: Final = Setting(
    SPARK_HOME,
    "links to the installed Spark, in the user's cache, without `pyspark.zip`; for a local master",
    "an environment variable, which must be there when Spark starts. Without it each process of "
    "Python that Spark starts, one for every query, compiles PySpark again, which takes half a "
    "second of a core or more",
)

SETTINGS: Final = (
    Setting(
        "spark.sql.shuffle.partitions",
        "4",
        "windows, joins and sorts keep their state in this many parts, and each costs time and "
        "files in every batch: with Spark's 200 a small stream takes eight times as long. A "
        "checkpoint keeps the number that it began with; on a cluster take about one for each core",
    ),
    Setting(
        "spark.python.unix.domain.socket.enabled",
        "true",
        "rows reach Python without TCP's waiting for acknowledgements: some 45 ms less a task",
    ),
    Setting(
        "spark.hadoop.fs.AbstractFileSystem.file.impl",
        "org.apache.hadoop.fs.local.RawLocalFs",
        "for checkpoints on a local disk: one file where there were two. Without it Hadoop keeps a "
        "file of checksums beside each, which Spark never uses, and runs the program `chmod` for "
        "both: a third of the time of a small batch",
    ),
    Setting(
        "spark.sql.session.timeZone",
        "UTC",
        "days begin, and times are shown, in UTC, as CTIs are; without it in the machine's zone",
    ),
)


def spark_settings() -> dict[str, str]:
    """The Spark settings that `configure_spark` makes, for sessions that are configured elsewhere.

    - `spark.sql.shuffle.partitions`: with Spark's 200 a small stream takes eight times as long.
    - `spark.python.unix.domain.socket.enabled`: saves about 45 ms a task on the way to Python.
    - `spark.hadoop.fs.AbstractFileSystem.file.impl`: a local checkpoint has half of the files, by
      which a small batch takes a third less time.
    - `spark.sql.session.timeZone`: days begin, and times are shown, in UTC, as CTIs are.

    Two more are environment variables, which must be there before Spark starts. Spark looks the
    formats up with PYSPARK_PYTHON: set it to a path that all nodes have. SPARK_HOME may be a Spark
    home without `pyspark.zip`, which each process of Python would compile again.

    Returns:
        Name -> value, for `builder.config(map=...)` or spark-defaults.conf.
    """
    return {setting.name: setting.value for setting in SETTINGS}


def configure_spark(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Give `builder` the settings that these formats need: `INTERPRETER`, `HOME` and `SETTINGS`.

    Settings made by `builder` or spark-submit stay; `.config(...)` after this call overrides.
    Where the environment variable PYSPARK_PYTHON is not set, it is set to the running interpreter,
    for this process and those that it starts, so that Spark finds what is installed there. On a
    cluster set it yourself, to a path that all nodes have. With a local master, and the running
    interpreter for its workers, SPARK_HOME is set as well unless it is: to links to the installed
    Spark without its `pyspark.zip`, so that these processes need not compile PySpark.

        spark = configure_spark(SparkSession.builder.master("local[2]")).getOrCreate()

    Where `builder` is for a Spark Connect server that runs already, only the settings of a session
    (`spark.sql.*`) are made, and they go before the server's own; its interpreter is not checked.

    Raises:
        WrongInterpreter: Spark would start, or has started, with a Python that lacks this package.
    """
    if _is_for_server(builder):
        return _configure(builder, [each for each in SETTINGS if each.name.startswith("spark.sql")])
    jvm = _get_running_jvm()
    if jvm is None:
        use_this_interpreter(os.environ)
    environment = _get_environment(jvm)
    if fault := find_interpreter_fault(environment):
        raise WrongInterpreter(fault, next_step=_suggest_next_step(environment, jvm is not None))
    if jvm is None and _is_local(builder) and is_this_interpreter(environment):
        use_installed_pyspark(os.environ)
    started = SparkConf() if jvm is not None else None
    return _configure(builder, [e for e in SETTINGS if not (started and started.contains(e.name))])


def _configure(builder: SparkSession.Builder, settings: Iterable[Setting]) -> SparkSession.Builder:
    """Give `builder` those of `settings` that it does not have."""
    given = getattr(builder, "_options", {})
    for setting in settings:
        if setting.name not in given:
            builder = builder.config(setting.name, setting.value)
    return builder


def _is_local(builder: SparkSession.Builder) -> bool:
    """True if `builder` names a master in this process; YARN would look for the zip."""
    master = str(getattr(builder, "_options", {}).get("spark.master", ""))
    return master == "local" or master.startswith("local[")


def _is_for_server(builder: SparkSession.Builder) -> bool:
    """True if `builder` makes sessions of a Spark Connect server that runs already."""
    given = getattr(builder, "_options", {})
    url = given.get("spark.remote") or os.environ.get("SPARK_REMOTE") or ""
    has_channel = getattr(builder, "_channel_builder", None) is not None
    return has_channel or str(url).startswith(_SERVER_SCHEME)


def is_connect_client() -> bool:
    """True if this process talks to a Spark Connect server, whose environment it does not know."""
    url = os.environ.get("SPARK_REMOTE", "")
    return (is_remote() or url.startswith(_SERVER_SCHEME)) and _get_running_jvm() is None


def warn_of_interpreter(stacklevel: int) -> None:
    """Warn if Spark would not find these formats."""
    if is_connect_client():
        return
    jvm = _get_running_jvm()
    environment = _get_environment(jvm)
    if fault := find_interpreter_fault(environment):
        warnings.warn(
            compose_message(
                f"{fault}: formats 'timestream' and 'tseries' will not be found",
                next_step=_suggest_next_step(environment, jvm is not None),
            ),
            stacklevel=stacklevel + 1,
        )


def explain_missing_format(name: str) -> str:
    """Explain why Spark has not found the format `name`, with the next step."""
    if is_connect_client():
        return compose_message(
            f"format '{name}' was not found: it is looked up by the Spark Connect server, with the "
            "Python that PYSPARK_PYTHON names there",
            next_step="install pyspark-timestream there and on the workers, and start the server "
            "again; the server's log says 'Skipping the lookup of Python Data Sources' if a "
            "package called pyspark_* fails",
        )
    jvm = _get_running_jvm()
    environment = _get_environment(jvm)
    if fault := find_interpreter_fault(environment):
        step = _suggest_next_step(environment, jvm is not None)
    else:
        fault = "Spark imports every package that is called pyspark_*, and one that fails hides all"
        step = "look in Spark's log for 'Skipping the lookup of Python Data Sources'"
    return compose_message(f"format '{name}' was not found: {fault}", next_step=step)


def _suggest_next_step(environment: Mapping[str, str], is_running: bool) -> str:
    _, source = find_worker_command(environment)
    if is_running:
        unset = f", {source} unset" if source in INTERPRETER_VARIABLES else ""
        return (
            "Spark runs already: start this process or kernel again with PYSPARK_PYTHON="
            f"{sys.executable} in its environment{unset}, or build the session with "
            "pyspark_timestream.configure_spark before anything else starts Spark"
        )
    if source in INTERPRETER_VARIABLES:
        return f"leave {source} unset, or set it to {sys.executable}"
    return (
        "build the session with pyspark_timestream.configure_spark(SparkSession.builder), or set "
        f"PYSPARK_PYTHON={sys.executable} before Spark starts"
    )


def _get_running_jvm() -> Any | None:
    """The JVM of this process, None before the first session."""
    if _GATEWAY in os.environ:
        SparkContext._ensure_initialized()
    return SparkContext._jvm


def _get_environment(jvm: Any | None) -> Mapping[str, str]:
    """The environment that decides: the JVM's, as it was at its start, or this process's."""
    return os.environ if jvm is None else dict(jvm.System.getenv())

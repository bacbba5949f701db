"""Prepares a Spark session for these formats: interpreter, Spark home, settings.

Spark's JVM starts the Python that PYSPARK_DRIVER_PYTHON names, else PYSPARK_PYTHON, else `python3`
on PATH. It ignores `spark.pyspark.python` and the interpreter that runs the driver. So a job
started as `venv/bin/python job.py` does not find these formats unless PYSPARK_PYTHON names that
interpreter before the JVM starts (semantics 11.5).
"""

import hashlib
import importlib
import importlib.util
import os
import shutil
import site
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession, is_remote

from pyspark_timestream.errors import WrongInterpreter, compose_message

INTERPRETER_VARIABLES: Final = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
"""Spark's JVM reads these variables, in this order."""

_DEFAULT_COMMAND: Final = "python3"
_HAS_PACKAGE: Final = (
    "import importlib.util as u, sys; sys.exit(0 if u.find_spec('pyspark_timestream') else 3)"
)
_START_TIMEOUT_S: Final = 30


def use_this_interpreter(environment: MutableMapping[str, str]) -> None:
    """Name the running interpreter in PYSPARK_PYTHON, unless `environment` names one already."""
    if sys.executable and not environment.get("PYSPARK_PYTHON"):
        environment["PYSPARK_PYTHON"] = sys.executable


def find_worker_command(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the command that a JVM in this environment starts workers with, and its origin."""
    for name in INTERPRETER_VARIABLES:
        if name in environment:
            return environment[name], name
    return _DEFAULT_COMMAND, "PATH"


def _is_this_interpreter(environment: Mapping[str, str]) -> bool:
    """Return whether a JVM in this environment starts workers with the running interpreter."""
    command, _ = find_worker_command(environment)
    path = shutil.which(command, path=environment.get("PATH", os.defpath))
    return path is not None and _is_running_interpreter(Path(path))


def find_interpreter_fault(environment: Mapping[str, str]) -> str | None:
    """Return why a JVM with this environment would not find the formats; None if it would.

    Starts that interpreter once if it is not the running one.
    """
    command, source = find_worker_command(environment)
    origin = "found on PATH" if source == "PATH" else f"from the environment variable {source}"
    path = shutil.which(command, path=environment.get("PATH", os.defpath))
    if path is None:
        return (
            f"Spark starts its Python workers as '{command}', {origin}, but there is no such file"
        )
    if _is_running_interpreter(Path(path)) or _has_package(path, environment):
        return None
    resolved = "" if path == command else f" ({path})"
    return (
        f"Spark starts its Python workers as '{command}'{resolved}, {origin}, and "
        "pyspark_timestream is not installed there"
    )


def _is_running_interpreter(path: Path) -> bool:
    """Compare the directory as well: virtual environments link to the same interpreter."""
    here = Path(sys.executable)
    return path.parent.absolute() == here.parent.absolute() and path.resolve() == here.resolve()


def _has_package(path: str, environment: Mapping[str, str]) -> bool:
    try:
        return not subprocess.run(
            [path, "-c", _HAS_PACKAGE],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_TIMEOUT_S,
            check=False,
        ).returncode
    except (OSError, subprocess.SubprocessError):
        return False


SPARK_HOME: Final = "SPARK_HOME"

_LINKED: Final = ("bin", "sbin", "jars", "conf", "data", "examples", "licenses", "RELEASE")
"""The parts of a Spark home besides Python's packages; an installation may lack some of them."""


def use_installed_pyspark(environment: MutableMapping[str, str]) -> None:
    """Set SPARK_HOME in `environment` to the result of `link_spark_home`, unless it is set.

    Set nothing if PySpark has no Spark of its own, if other processes would not find it (because
    only this process has it on `sys.path`), or if the links cannot be made (no writable home
    directory). Spark then starts as usual, only slower.
    """
    if SPARK_HOME in environment:
        return
    installed, cache = _find_installed_spark(), _find_cache(environment)
    if installed is None or cache is None:
        return
    if installed.parent.resolve() in _list_inherited_paths(environment):
        with suppress(OSError):
            environment[SPARK_HOME] = str(link_spark_home(installed, cache))


def link_spark_home(installed: Path, cache: Path) -> Path:
    """Make or repair a directory in `cache` with links to `installed`, without `pyspark.zip`.

    Spark puts `SPARK_HOME/python/lib/pyspark.zip` first on the path of every Python process that it
    starts, at least one per query, and Python compiles imports from a zip again in each process:
    half a second of a core or more. Without the zip these processes import the same PySpark, with
    its bytecode, from the packages of their interpreter. Several processes may call this at once.

    Raises:
        OSError: a link cannot be made.
    """
    # Each installation path gets its own directory.
    digest = hashlib.sha256(os.fsencode(installed)).hexdigest()[:16]
    home = cache / "pyspark-timestream" / f"spark-home-{digest}"
    home.mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        link, target = home / name, installed / name
        if link.is_symlink() and (link.readlink() != target or not target.exists()):
            link.unlink(missing_ok=True)
        if target.exists():
            # Another process may have made the link meanwhile.
            with suppress(FileExistsError):
                link.symlink_to(target)
    return home


def _find_installed_spark() -> Path | None:
    """Return the directory of the importable PySpark if it contains Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return None
    installed = Path(spec.origin).parent
    names = ("bin/spark-submit", "jars", "python/lib/pyspark.zip")
    return installed if all((installed / name).exists() for name in names) else None


def _list_inherited_paths(environment: Mapping[str, str]) -> set[Path]:
    """List the directories that this interpreter imports from in every process."""
    inherited = environment.get("PYTHONPATH", "").split(os.pathsep)
    directories = [*site.getsitepackages(), site.getusersitepackages(), *filter(None, inherited)]
    return {Path(directory).resolve() for directory in directories}


def _find_cache(environment: Mapping[str, str]) -> Path | None:
    """Return the user's cache directory (XDG Base Directory Specification)."""
    # A relative path would make the home depend on where the process was started.
    cache_home, home = environment.get("XDG_CACHE_HOME", ""), environment.get("HOME", "")
    if Path(cache_home).is_absolute():
        return Path(cache_home)
    return Path(home) / ".cache" if Path(home).is_absolute() else None


_SERVER_SCHEME: Final = "sc://"
"""The scheme of a running Spark Connect server's URL; another URL starts one in this process."""

_GATEWAY: Final = "PYSPARK_GATEWAY_PORT"
"""spark-submit sets this variable in its processes: their JVM runs already."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that a session needs.

    Attributes:
        name: the Spark setting or environment variable.
        value: the value that it should have.
        reason: the consequence of another value.
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
    """Return the Spark settings of `configure_spark`, for sessions that are configured elsewhere.

    - `spark.sql.shuffle.partitions`: with Spark's 200 a small stream takes eight times as long.
    - `spark.python.unix.domain.socket.enabled`: saves about 45 ms a task on the way to Python.
    - `spark.hadoop.fs.AbstractFileSystem.file.impl`: halves the files of a local checkpoint, and
      cuts the time of a small batch by a third.
    - `spark.sql.session.timeZone`: days begin, and times are shown, in UTC, as CTIs are.

    Two more are environment variables; set them before Spark starts. Spark looks the formats up
    with PYSPARK_PYTHON: set it to a path that all nodes have. SPARK_HOME may name a Spark home
    without `pyspark.zip`, so that Python processes need not compile PySpark again.

    Returns:
        Name -> value, for `builder.config(map=...)` or spark-defaults.conf.
    """
    return {setting.name: setting.value for setting in SETTINGS}


def configure_spark(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Give `builder` the settings that these formats need: `INTERPRETER`, `HOME` and `SETTINGS`.

    Settings made by `builder` or spark-submit stay; `.config(...)` after this call overrides.
    If the environment variable PYSPARK_PYTHON is not set, this call sets it to the running
    interpreter, for this process and its children, so that Spark finds the packages installed
    there. On a cluster set it yourself, to a path that all nodes have. If the master is local, the
    workers use the running interpreter and SPARK_HOME is not set, this call also sets SPARK_HOME to
    links to the installed Spark without its `pyspark.zip`, so that workers need not compile
    PySpark.

        spark = configure_spark(SparkSession.builder.master("local[2]")).getOrCreate()

    If `builder` connects to a running Spark Connect server, this call makes only the settings of a
    session (`spark.sql.*`), which override the server's own, and does not check its interpreter.

    Raises:
        WrongInterpreter: Spark would start, or has started, with a Python that lacks this package.
    """
    # Before the JVM is looked for, which uses Java at once after spark-submit.
    _load_what_warns_of_pandas("pyspark.testing.utils")
    if _is_for_server(builder):
        _load_what_warns_of_pandas("pyspark.sql.connect.session")
        return _configure(
            builder, [setting for setting in SETTINGS if setting.name.startswith("spark.sql")]
        )
    jvm = _get_running_jvm()
    if jvm is None:
        use_this_interpreter(os.environ)
    environment = _get_environment(jvm)
    if fault := find_interpreter_fault(environment):
        raise WrongInterpreter(
            fault, next_step=_suggest_next_step(environment, is_running=jvm is not None)
        )
    if jvm is None and _is_local(builder) and _is_this_interpreter(environment):
        use_installed_pyspark(os.environ)
    started = SparkConf() if jvm is not None else None
    return _configure(builder, [e for e in SETTINGS if not (started and started.contains(e.name))])


def _load_what_warns_of_pandas(module: str) -> None:
    """Import, silently, a module that warns of pandas 3 when Spark starts a session.

    Spark 4.2 and 4.3 convert nothing at that point; where they convert, they warn again.
    """
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.simplefilter("ignore", FutureWarning)
        importlib.import_module(module)


def _configure(builder: SparkSession.Builder, settings: Iterable[Setting]) -> SparkSession.Builder:
    """Give `builder` the `settings` that it lacks."""
    builder_options = getattr(builder, "_options", {})
    for setting in settings:
        if setting.name not in builder_options:
            builder = builder.config(setting.name, setting.value)
    return builder


def _is_local(builder: SparkSession.Builder) -> bool:
    """Return whether the master runs in this process; YARN would look for `pyspark.zip`."""
    master = str(getattr(builder, "_options", {}).get("spark.master", ""))
    return master == "local" or master.startswith("local[")


def _is_for_server(builder: SparkSession.Builder) -> bool:
    """Return whether `builder` makes sessions of a running Spark Connect server."""
    builder_options = getattr(builder, "_options", {})
    url = builder_options.get("spark.remote") or os.environ.get("SPARK_REMOTE") or ""
    has_channel = getattr(builder, "_channel_builder", None) is not None
    return has_channel or str(url).startswith(_SERVER_SCHEME)


def _is_connect_client() -> bool:
    """Return whether this process talks to a Spark Connect server in an unknown environment."""
    url = os.environ.get("SPARK_REMOTE", "")
    return (is_remote() or url.startswith(_SERVER_SCHEME)) and _get_running_jvm() is None


def warn_of_interpreter(stacklevel: int) -> None:
    """Warn if Spark would not find these formats."""
    if _is_connect_client():
        return
    jvm = _get_running_jvm()
    environment = _get_environment(jvm)
    if fault := find_interpreter_fault(environment):
        warnings.warn(
            compose_message(
                f"{fault}: formats 'timestream' and 'tseries' will not be found",
                next_step=_suggest_next_step(environment, is_running=jvm is not None),
            ),
            stacklevel=stacklevel + 1,
        )


def explain_missing_format(name: str) -> str:
    """Explain why Spark has not found the format `name`, with the next step."""
    if _is_connect_client():
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
        step = _suggest_next_step(environment, is_running=jvm is not None)
    else:
        fault = "Spark imports every package that is called pyspark_*, and one that fails hides all"
        step = "look in Spark's log for 'Skipping the lookup of Python Data Sources'"
    return compose_message(f"format '{name}' was not found: {fault}", next_step=step)


def _suggest_next_step(environment: Mapping[str, str], *, is_running: bool) -> str:
    _, source = find_worker_command(environment)
    if is_running:
        # PySpark prefers this variable to the other one.
        unset = f", {source} unset" if source == "PYSPARK_DRIVER_PYTHON" else ""
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
    """Return the JVM of this process; None before the first session."""
    if _GATEWAY in os.environ:
        SparkContext._ensure_initialized()
    return SparkContext._jvm


def _get_environment(jvm: Any | None) -> Mapping[str, str]:
    """Return the JVM's environment, fixed at its start, or this process's if no JVM runs yet."""
    return os.environ if jvm is None else dict(jvm.System.getenv())


ZERO_DELAY_SETTING: Final = "spark.sql.streaming.eventTimeWatermark.bumpZeroDelayToOneMs"
"""If true, Spark turns a watermark delay of zero into one millisecond; proposed in PR 56043."""


REQUIRED_SETTINGS: Final = {
    each.name: each
    for each in (
        Setting(
            "spark.sql.streaming.multipleWatermarkPolicy",
            "min",
            "where streams are joined or united, rows of the slower one are silently dropped",
        ),
        Setting(
            "spark.sql.streaming.noDataMicroBatches.enabled",
            "true",
            "what a CTI releases waits for the next record, and a bounded run ends without its "
            "last results",
        ),
    )
}
"""Settings that must keep Spark's default, by name."""


def find_wrong_settings(read_setting: Callable[[str], str | None]) -> dict[str, str]:
    """Return the settings with a wrong value, name -> value; `read_setting`: None if unset."""
    values = {name: read_setting(name) for name in REQUIRED_SETTINGS}
    return {
        name: value
        for name, value in values.items()
        if value is not None and value.lower() != REQUIRED_SETTINGS[name].value
    }


def suggest_fix(name: str) -> str:
    """Return the advice about another value of the setting `name`."""
    return (
        f"spark.conf.set('{name}', '{REQUIRED_SETTINGS[name].value}') before the query is built; "
        "a checkpoint may keep the value that it began with, so start with a new one"
    )

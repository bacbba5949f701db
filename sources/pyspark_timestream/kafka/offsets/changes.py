"""Changes of a running clock (semantics 8.10): what a restart may change, and the effect.

An offset keeps the options that its batch is read by, so a change begins with an offset that has
other ones. `find_change` compares the last offset with today's options, `NewRules` converts the
clocks of partitions for the new options, and the offset records a `ClockChange`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark_timestream.core.checkpoint import CTI_SETTINGS
from pyspark_timestream.core.declarations import quote_setting
from pyspark_timestream.kafka.options.kafka_options import ENDING_OPTIONS, SPECS, KafkaOptions
from pyspark_timestream.kafka.options.parsers import NOW
from pyspark_timestream.rules.clocks import PartitionClock, change_rules

Settings = Mapping[str, str]

KEPT_CHANGES: Final = 16
"""An offset keeps at least this many changes, the last ones."""

IDLE_TIMEOUT: Final = "idleTimeout"
"""This option is not pinned, so it changes without `changeFrom`, and is recorded all the same."""


def describe_settings(old: Settings, new: Settings) -> str:
    """Return the options of a change with their old and new values.

    >>> describe_settings({"ctiDelay": "1 s"}, {"ctiDelay": "2 s", "writers": "a"})
    "'ctiDelay' from '1 s' to '2 s', 'writers' from not set to 'a'"
    """
    return ", ".join(
        f"'{name}' from {quote_setting(old.get(name))} to {quote_setting(new.get(name))}"
        for name in sorted({*old, *new})
    )


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A change of options, as the offsets from then on record it.

    Attributes:
        number: the first batch that is read by the new values.
        cti_us: the stream's CTI there; None before the first.
        old: the old values of the options that differ; one that was not set is left out.
        new: the new values.
    """

    number: int
    cti_us: int | None
    old: Settings
    new: Settings

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with sorted keys."""
        return {
            "cti": self.cti_us,
            "from": dict(sorted(self.old.items())),
            "number": self.number,
            "to": dict(sorted(self.new.items())),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ClockChange":
        """Read the result of `to_json`."""
        return cls(value["number"], value["cti"], value["from"], value["to"])

    def describe(self) -> str:
        """Return the options with their old and new values."""
        return describe_settings(self.old, self.new)

    def apply(self, settings: Settings) -> dict[str, str]:
        """Return the pinned options after the change, from those before it."""
        unchanged = {name: text for name, text in settings.items() if name not in self.old}
        return {**unchanged, **{name: self.new[name] for name in self.new if name != IDLE_TIMEOUT}}

    def undo(self, settings: Settings) -> dict[str, str]:
        """Return the pinned options before the change, from those after it."""
        unchanged = {name: text for name, text in settings.items() if name not in self.new}
        return {**unchanged, **{name: self.old[name] for name in self.old if name != IDLE_TIMEOUT}}


@dataclass(frozen=True, slots=True)
class NewRules:
    """The change that a batch begins with.

    Attributes:
        old, new: the options that differ, as in `ClockChange`.
        settings: all pinned options from then on.
        before, after: the options of the clocks.
    """

    old: Settings
    new: Settings
    settings: Settings
    before: KafkaOptions
    after: KafkaOptions

    def move(self, clock: PartitionClock) -> PartitionClock:
        """Return a partition's clock after the change."""
        return change_clock(clock, self.before, self.after)

    @property
    def leaves_import_out(self) -> bool:
        """Whether CTIs are no longer imported."""
        return self.before.cti_import is not None and self.after.cti_import is None


def change_clock(
    clock: PartitionClock, before: KafkaOptions, after: KafkaOptions
) -> PartitionClock:
    """Return a partition's clock after a change of options."""
    return change_rules(
        clock,
        before.rules,
        after.rules,
        forgets_marks=before.cti_header not in (None, after.cti_header),
    )


def find_change(
    options: KafkaOptions,
    settings: Settings,
    unpinned: Settings,
    *,
    last_settings: Settings,
    last_unpinned: Settings,
) -> NewRules | None:
    """Return how today's options differ from the last offset's; None if they do not.

    `settings` are today's options that a checkpoint pins, `unpinned` the options that the next
    offset notes although they may change; the others come from the last offset.
    """
    before = {**last_settings, **_select_idle_timeout(last_unpinned)}
    after = {**settings, **_select_idle_timeout(unpinned)}
    if before == after:
        return None
    return NewRules(
        *compare_settings(before, after),
        settings,
        options.as_of(last_settings),
        options,
    )


def compare_settings(before: Settings, after: Settings) -> tuple[Settings, Settings]:
    """Return the values of the options that differ, before and after; one not set is left out.

    >>> compare_settings({"a": "1", "b": "2"}, {"a": "3", "b": "2"})
    ({'a': '1'}, {'a': '3'})
    """
    names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
    return (
        {name: before[name] for name in names if name in before},
        {name: after[name] for name in names if name in after},
    )


def _select_idle_timeout(unpinned: Settings) -> Settings:
    return {name: text for name, text in unpinned.items() if name == IDLE_TIMEOUT}


def find_bad_value(change: ClockChange) -> str | None:
    """Return which value of a recorded change cannot be read; None if all can."""
    for values in (change.old, change.new):
        for name, text in values.items():
            spec = SPECS.get(name)
            if spec is None or not (spec.allowed_change or name == IDLE_TIMEOUT):
                return f"it records a change of '{name}', which never changes"
            try:
                spec.parser.parse(text)
            except ValueError:
                return f"it records a change of '{name}' whose value '{text}' cannot be read"
    return None


def keep_changes(changes: Sequence[ClockChange], committed: int) -> tuple[ClockChange, ...]:
    """Return the changes that an offset keeps.

    It keeps the last ones, all that a restart may join, and the last change of a pinned option. By
    the latter `correct_late` recognizes a stream with other clocks (30.6), so changes of
    `idleTimeout`, which anyone may make, never push it out.
    """
    dispensable = max(len(changes) - KEPT_CHANGES, 0)
    pinned = (
        index
        for index, change in enumerate(changes)
        if {*change.old, *change.new} != {IDLE_TIMEOUT}
    )
    last_pinned = max(pinned, default=-1)
    return tuple(
        change
        for index, change in enumerate(changes)
        if index >= dispensable or index == last_pinned or change.number > committed
    )


def settings_before(settings: Settings, changes: Sequence[ClockChange], after: int) -> Settings:
    """Return the pinned options right after the batch `after`, from a later offset's."""
    for change in reversed(changes):
        if change.number > after:
            settings = change.undo(settings)
    return settings


def find_obstacle(
    name: str, stored: Settings, settings: Settings, change_from: str | int | None = NOW
) -> str | None:
    """Return what `changeFrom` does instead of the change of an option; None if it makes it."""
    spec = SPECS.get(name)
    old = stored.get(name)
    new = settings.get(name)
    kind = "" if spec is None else spec.allowed_change
    if spec is None or not kind:
        return "does not change it"
    try:
        if old is not None:
            spec.parser.parse(old)
    except ValueError:
        return f"cannot read '{old}', so the checkpoint is damaged"
    is_source = name in CTI_SETTINGS and (old is None or new is None)
    # From an instant on only values change (8.10).
    if isinstance(change_from, int) and (kind == "more" or is_source):
        return f"adds topics, and adds or leaves out sources of CTIs, only with '{NOW}'"
    if kind == "more":
        if old is None or new is None or not set(old.split(",")) <= set(new.split(",")):
            return "only adds topics"
        if any(end in stored for end in ENDING_OPTIONS):
            return "adds no topics to a stream with an end"
        return None
    if name in CTI_SETTINGS and old is None:
        has_other_source = any(cti_setting in stored for cti_setting in CTI_SETTINGS)
        return None if has_other_source else "adds a source of CTIs only beside another"
    if name in CTI_SETTINGS and new is None:
        is_last = not any(cti_setting in settings for cti_setting in CTI_SETTINGS)
        return "leaves a source of CTIs out only beside another" if is_last else None
    if kind == "value":
        return None
    return (
        "takes another one in two restarts: the first leaves the old one out beside another source"
    )

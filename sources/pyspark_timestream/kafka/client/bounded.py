"""Calls Kafka's client library with time limits of our own.

librdkafka 2.16 does not always keep a time-out: by its issues 5456 and 5511,
`send_offsets_to_transaction` may never return after a broker has restarted. So a helper thread
makes each call, and the caller gives up a few seconds after the time-out. The call is then
*abandoned*: its thread, a daemon, keeps the client until the call returns, and the client takes no
other calls. The process can still end.

The thread costs 6 microseconds a call. Only `produce`, which does not wait, is called directly.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException

T = TypeVar("T")
_Use = Callable[[Any], Any]
"""Calls a client, which it is given."""

_LOG: Final = logging.getLogger(__name__)

GRACE_S: Final = 10.0
"""How long a call may exceed its time-out; sound calls never do, even on a busy machine."""

_CLOSE_TIMEOUT_S: Final = 5.0
"""Longer than any close that does not deadlock."""

_WAIT_STEP_S: Final = 1.0
"""Waits are cut into steps: after an hour's stop of the machine one step is over, not the limit."""

_WITHOUT_NAMES: Final = frozenset(
    (
        "init_transactions",
        "send_offsets_to_transaction",
        "commit_transaction",
        "abort_transaction",
    )
)
"""Methods of a producer that take their time-out only as a positional argument."""

_MAX_IDLE: Final = 8
_MAX_ABANDONED: Final = 64
"""Limit of hanging calls in one process, and of hanging closes; then it makes no further ones."""


class HangingCalls:
    """The calls of one kind that hang in this process; at `limit` of them, make no further call."""

    def __init__(self) -> None:
        self.limit = _MAX_ABANDONED
        self.calls: set[_Call] = set()
        # Closes that were not made. They keep their clients, because freeing those might hang.
        self.parked: list[Callable[[], object]] = []


class CallAbandoned(KafkaException):  # type: ignore[misc]
    """A call did not return in time: its effect is unknown, and its client is given up.

    Attributes:
        is_refused: True if it was not made, because too many others have not returned.
    """

    is_refused = False

    def __init__(self, name: str, limit_s: float, why: str | None = None) -> None:
        why = why or f"has not returned from {name} in {limit_s:.0f} s"
        super().__init__(
            KafkaError(KafkaError._TIMED_OUT, f"Kafka's client library (librdkafka) {why}")
        )


class _Call:
    """One call: the waiting thread passes it to the helper that makes it."""

    __slots__ = ("answer", "function", "hanging", "is_done")

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function: Callable[[], Any] | None = function
        self.answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        self.is_done = False
        self.hanging: HangingCalls | None = None


class _Helper(threading.Thread):
    """A daemon thread that makes one call after another."""

    def __init__(self) -> None:
        super().__init__(name="timestream-kafka-call", daemon=True)
        self.calls: SimpleQueue[_Call] = SimpleQueue()
        self.start()

    def run(self) -> None:
        is_kept = True
        while is_kept:
            call = self.calls.get()
            answer: tuple[Any, BaseException | None]
            try:
                assert call.function is not None
                answer = call.function(), None
            except BaseException as error:
                answer = None, error
            # This may free the client of an abandoned call and hang, so it comes before the thread
            # is offered for other calls.
            call.function = None
            with _LOCK:
                call.is_done = True
                if call.hanging is not None:
                    call.hanging.calls.discard(call)
                is_kept = len(_IDLE) < _MAX_IDLE
                if is_kept:
                    _IDLE.append(self)
            call.answer.put(answer)
            del call, answer


_IDLE: Final[list[_Helper]] = []
ABANDONED: Final = HangingCalls()
UNCLOSED: Final = HangingCalls()
"""Closes that hang, counted apart: only their clients leak, so other calls may go on."""
_LOCK: Final = threading.Lock()


def _begin_in_child() -> None:
    """Forget the parent's threads: a forked child has none of them."""
    _IDLE.clear()
    ABANDONED.calls.clear()
    UNCLOSED.calls.clear()
    _LOCK.release()


os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_begin_in_child
)


def call_bounded(
    function: Callable[[], T], limit_s: float, name: str, hanging: HangingCalls = ABANDONED
) -> T:
    """Call `function` in a helper thread, and wait at most `limit_s` seconds for it.

    Raises:
        CallAbandoned: it did not return, and may go on; or it was not made, because too many calls
            of its kind, `hanging`, have not returned.
    """
    if len(hanging.calls) >= hanging.limit:
        why = f"has not returned from {hanging.limit} calls of this process, so {name} is not made"
        error = CallAbandoned(name, limit_s, f"{why}: restart the Python process")
        error.is_refused = True
        raise error
    if sys.is_finalizing():
        # Daemon threads no longer run, so this thread makes the call.
        return function()
    try:
        helper = _IDLE.pop()
    except IndexError:
        try:
            helper = _Helper()
        except RuntimeError:
            # The interpreter is shutting down and starts no threads.
            return function()
    call = _Call(function)
    # Now only the helper keeps the client, so no other thread can free one that hangs.
    del function
    helper.calls.put(call)
    waited_s = 0.0
    while waited_s < limit_s:
        wait_s = min(_WAIT_STEP_S, limit_s - waited_s)
        try:
            return cast(T, _unpack(call.answer.get(timeout=wait_s)))
        except Empty:
            waited_s += wait_s
    with _LOCK:
        if not call.is_done:
            call.hanging = hanging
            hanging.calls.add(call)
            raise CallAbandoned(name, limit_s)
    return cast(T, _unpack(call.answer.get()))


def _unpack(answer: tuple[Any, BaseException | None]) -> Any:
    value, error = answer
    if error is not None:
        raise error
    return value


class BoundedClient:
    """A client of confluent-kafka; each call may take its `timeout` plus `GRACE_S`.

    Attributes:
        is_abandoned: True once a call has not returned, or after `close`. Further calls raise
            `CallAbandoned` at once.
        direct: the client itself, for calls that do not wait, such as `produce`; None once it is
            abandoned.
        wrap: turns a function into the one that the helper runs; the waiting thread calls it.

    Args:
        client: a `Producer`, `Consumer` or `AdminClient`, which nobody else keeps.
    """

    def __init__(self, client: Any) -> None:
        self.direct = client
        self.is_abandoned = False
        self.wrap: Callable[[_Use], _Use] = lambda function: function

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            timeout_s = keywords.get("timeout", keywords.get("request_timeout", 0.0))
            if name in _WITHOUT_NAMES and "timeout" in keywords:
                arguments = (*arguments, keywords.pop("timeout"))

            def function(client: Any) -> Any:
                return getattr(client, name)(*arguments, **keywords)

            return self.run(function, timeout_s, name)

        return call

    def run(self, function: Callable[[Any], T], timeout_s: float, name: str) -> T:
        """Call `function`, which may make several calls, with the client.

        Raises:
            CallAbandoned: it did not return within `timeout_s` plus `GRACE_S`.
        """
        limit_s = timeout_s + GRACE_S
        # Read `direct` once, because other threads may abandon the client, and keep no reference
        # in this frame, because its end might then free the client.
        client_cell = [self.direct]
        if client_cell[0] is None:
            raise CallAbandoned(name, limit_s, f"has not returned from a call before {name}")
        try:
            bounded = partial(self.wrap(function), client_cell.pop())
            return cast(T, call_bounded(bounded, limit_s, name))
        except CallAbandoned as error:
            # No helper keeps the client of a call that was not made: giving it up frees it here.
            if not error.is_refused:
                self._abandon()
            raise

    def wait(self, answer: "Future[T]", timeout_s: float, name: str) -> T:
        """Return the answer to an `AdminClient`'s request with this time-out.

        Raises:
            CallAbandoned: it did not come within `timeout_s` plus `GRACE_S`.
        """
        try:
            return answer.result(timeout=timeout_s + GRACE_S)
        except TimeoutError:
            self.close()
            raise CallAbandoned(name, timeout_s + GRACE_S) from None

    def close(self) -> None:
        """Close a consumer, and free any client; abandon one that takes longer than 5 s."""
        if self.is_abandoned:
            return
        client_cell = [self.direct]
        self._abandon()

        def free() -> None:
            client = client_cell.pop()
            # A producer's own close would wait for messages that it has not sent.
            if hasattr(client, "close") and not hasattr(client, "produce"):
                client.close()

        close_with_timeout(free)

    def _abandon(self) -> None:
        self.is_abandoned = True
        self.direct = None


def close_with_timeout(close: Callable[[], object]) -> None:
    """Call `close` and wait at most 5 s for it to return.

    librdkafka 2.16 may deadlock when it is closed just before it reports an offset that it cannot
    read (`rd_kafka_offset_reset_op_cb`). Then its threads and connections leak, but the task does
    not hang.
    """
    try:
        call_bounded(close, _CLOSE_TIMEOUT_S, "close", UNCLOSED)
    except CallAbandoned as error:
        if error.is_refused:
            UNCLOSED.parked.append(close)
        _LOG.warning(
            "a Kafka client %s: it is left behind",
            "is not closed, since too many of this process did not close"
            if error.is_refused
            else f"did not close in {_CLOSE_TIMEOUT_S:.0f} s",
        )

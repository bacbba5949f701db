"""Requests of a writer to its brokers: retried while that helps, and with the remedy if not."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from pyspark_timestream.connector.options import OptionError, hide_secrets
from pyspark_timestream.errors import DeliveryFailed
from pyspark_timestream.kafka.client.bounded import CallAbandoned
from pyspark_timestream.kafka.client.broker_errors import no_answer_error
from pyspark_timestream.kafka.client.client_log import ClientLog
from pyspark_timestream.kafka.client.retry import API_TIMEOUT_S, RetryBudget, is_retriable

__all__ = [
    "PRODUCER_DEFAULTS",
    "PRODUCER_REQUIRED",
    "STEP_TIMEOUT_S",
    "Requests",
    "reading_config",
]

T = TypeVar("T")

STEP_TIMEOUT_S: Final = 10.0
"""Limit of one attempt at a request."""

_FIRST_PAUSE_S: Final = 0.05

PRODUCER_DEFAULTS: Final[dict[str, Any]] = {
    # As Kafka's Java client: the same key goes to the same partition, whoever writes it.
    "partitioner": "murmur2_random",
    # Long enough for a slow task, and short enough for readers where a job never comes back.
    "transaction.timeout.ms": 300_000,
    "queue.buffering.max.messages": 100_000,
    "linger.ms": 20,
    "compression.type": "lz4",
}
PRODUCER_REQUIRED: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "allow.auto.create.topics": False,
    "delivery.report.only.error": True,
}
_PRODUCER_ONLY: Final = ("transaction.", "queue.buffering.", "batch.", "partitioner")

_RIGHTS: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "let the user write to the topic and describe it",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "let the user write and describe "
    "transactional ids with the prefix of option 'transactionalIdPrefix'",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "let the user read consumer groups with the prefix of "
    "option 'transactionalIdPrefix'",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "let the user write idempotently to the cluster",
    KafkaError.MSG_SIZE_TOO_LARGE: "raise 'kafka.message.max.bytes' and the topic's "
    "max.message.bytes, or make the rows smaller",
    KafkaError._UNKNOWN_PARTITION: "correct the rows' column 'partition'",
    KafkaError._FENCED: "see to it that no other query, or attempt of this one, uses the same "
    "'writer'",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "lower 'kafka.transaction.timeout.ms' to at most the "
    "broker's transaction.max.timeout.ms",
    KafkaError.UNSTABLE_OFFSET_COMMIT: "wait until the broker has ended the transaction that an "
    "earlier attempt left open, at the latest after 'kafka.transaction.timeout.ms'",
    KafkaError._QUEUE_FULL: "raise 'kafka.queue.buffering.max.kbytes'",
    KafkaError._UNSUPPORTED_FEATURE: "use brokers with transactions (Kafka 0.11 or newer)",
}
_TOO_SLOW: Final = (
    "raise 'kafka.transaction.timeout.ms', since the broker ends a transaction that takes longer; "
    "or see to it that no other query uses the same 'writer'"
)


def reading_config(client: Mapping[str, str]) -> dict[str, Any]:
    """The user's settings for clients that read what is written: without producers' own."""
    set_here = PRODUCER_DEFAULTS | PRODUCER_REQUIRED
    own = {key: text for key, text in client.items() if not key.startswith(_PRODUCER_ONLY)}
    return {key: text for key, text in own.items() if key not in set_here}


class Requests:
    """The requests of one writer's clients.

    Attributes:
        log: takes the clients' errors.

    Args:
        client: the user's settings for librdkafka.
        topic: where records and marks go; None: each record names its topic.
    """

    def __init__(self, client: Mapping[str, str], topic: str | None) -> None:
        self._client = client
        self._where = "the rows' topics" if topic is None else f"topic '{topic}'"
        self.log = ClientLog(client)

    def run(self, step: Callable[[], T], wanted: str) -> T:
        """Run one step, and retry while the client calls the error retriable.

        Raises:
            DeliveryFailed: another error, or one that has ended the transaction; or the client
                library has not returned.
            BrokerUnreachable: no broker has answered in a minute.
        """
        budget = RetryBudget(API_TIMEOUT_S, _FIRST_PAUSE_S)

        def pause_or_raise(error: KafkaException) -> None:
            cause, spent_s = error.args[0], budget.elapsed_s
            is_passing = isinstance(error, CallAbandoned) or is_retriable(cause)
            if isinstance(error, CallAbandoned) or cause.txn_requires_abort() or not is_passing:
                raise self.failure(cause, wanted, may_repeat=is_passing) from None
            if not budget.pause_before_retry():
                raise self._unreachable(cause, spent_s, wanted) from None

        return budget.call(lambda _: step(), pause_or_raise)

    def run_once(self, step: Callable[[], T], wanted: str) -> T:
        """Run one step that must not be repeated, since it may have had its effect in part.

        Raises:
            DeliveryFailed: any error.
        """
        try:
            return step()
        except KafkaException as error:
            is_abandoned = isinstance(error, CallAbandoned)
            raise self.failure(error.args[0], wanted, may_repeat=is_abandoned) from None

    def _unreachable(self, error: KafkaError, spent_s: float, wanted: str) -> Exception:
        failures = self.log.recent_failures(spent_s + 1)
        if error.code() >= 0 and not failures:
            return self.failure(error, wanted)
        return no_answer_error(self._client, failures, spent_s, self._where)

    def failure(
        self, error: KafkaError, wanted: str, *, may_repeat: bool = False
    ) -> DeliveryFailed:
        """The error for what a broker or the client has refused, with the remedy."""
        is_fenced = error.code() in (
            KafkaError._FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.INVALID_PRODUCER_ID_MAPPING,
            KafkaError.PRODUCER_FENCED,
            KafkaError._PURGE_QUEUE,
        )
        otherwise = "look at the brokers" if may_repeat else "correct what this names"
        advice = _TOO_SLOW if is_fenced else _RIGHTS.get(error.code(), otherwise)
        failed = DeliveryFailed(
            f"could not {wanted} for {self._where}: {hide_secrets(str(error.str()), self._client)}",
            next_step=f"{advice}; then start the query again: it goes on with this batch",
        )
        failed.may_repeat = may_repeat and not is_fenced
        return failed

    def refusal(self, error: KafkaException) -> OptionError:
        """The error for settings that librdkafka refuses."""
        return OptionError(
            "kafka.*",
            hide_secrets(str(error.args[0].str()), self._client),
            "librdkafka's configuration of a producer, each name after 'kafka.'",
            "correct the name or the value",
        )

"""Settings of a one-node broker, for the process and the container alike."""

from typing import Final

__all__ = ["KAFKA_VERSION", "LOG4J_FILE", "LOG_BINDING_VERSION", "broker_properties"]

KAFKA_VERSION: Final = "4.3.0"
LOG_BINDING_VERSION: Final = "2.25.4"
"""Of the log4j2 that Kafka brings; without a binding the broker would log nothing at all."""

LOG4J_FILE: Final = """appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def broker_properties(listen: str, advertise: str, controller: str, voter: str) -> dict[str, str]:
    """Settings of a one-node broker for tests, for both the process and the container."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{voter}",
        "listeners": f"PLAINTEXT://{listen},CONTROLLER://{controller}",
        "advertised.listeners": f"PLAINTEXT://{advertise}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # So that a test can forbid something by name; what no rule names is allowed.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        # A misspelt topic must be an error in a test, not an empty topic.
        "auto.create.topics.enable": "false",
        # After a SIGKILL the old registration blocks the new one until it times out.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # A compacted topic is compacted within a second or two, not within fifteen.
        "log.cleaner.backoff.ms": "1000",
        # Transactions that a test abandons are aborted soon after their timeout.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }

"""The parts that both formats share: options, instants, offsets, sessions, errors in Spark."""

"""The driver's side of a stream: asks the brokers, and hands kafka/offsets its observations."""

"""RabbitMQ, NATS JetStream and Redis Streams, each from its Debian package and with its own best Python client."""

"""Queues: beside Apache Kafka's share groups and other brokers' queues, and what they take of time and memory."""

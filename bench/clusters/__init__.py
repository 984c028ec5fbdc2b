"""Three Tidelog brokers beside three of Apache Kafka, under load, under faults and while they are operated."""

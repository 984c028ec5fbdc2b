"""What makes a log's bytes durable, and what remembers how far they are."""

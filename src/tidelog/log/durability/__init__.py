"""Makes a log's bytes durable, and remembers how far they are durable."""

"""Server-side assignors: pure functions that take subscriptions and the current assignment and return the target assignment."""

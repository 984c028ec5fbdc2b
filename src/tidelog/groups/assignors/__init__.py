"""Server-side assignors: pure functions from subscriptions, and what is assigned now, to what every member should have."""

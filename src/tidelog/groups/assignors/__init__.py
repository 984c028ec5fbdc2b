"""Server-side assignors: pure functions from subscriptions, and the present assignment, to what every member should have."""

"""Opening partition logs and data directories, after a clean stop or a crash."""

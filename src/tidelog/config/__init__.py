"""Every setting once: name, type, default, documentation."""

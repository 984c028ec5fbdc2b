"""Client quotas: what is measured, what each client may have, and how long one that had too much is left waiting."""

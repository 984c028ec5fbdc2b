"""The cluster's metadata: its records, and the image that replaying them gives."""

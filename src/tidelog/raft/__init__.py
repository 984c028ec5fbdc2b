"""The metadata quorum: who leads it, what is committed. One voter for now."""

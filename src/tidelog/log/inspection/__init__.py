"""Looking at a data directory from outside: what is in it, whether it is sound, and making a damaged partition usable again."""

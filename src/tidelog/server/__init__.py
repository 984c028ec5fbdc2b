"""The asyncio shell around the broker: sockets, timers, signals. It moves bytes and decides nothing about them."""

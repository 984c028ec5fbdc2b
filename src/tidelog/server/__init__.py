"""The asyncio server around the broker: sockets, timers, signals. It moves bytes and makes no decisions about them."""

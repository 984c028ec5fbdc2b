from tidelog.config.broker import BROKER
from tidelog.config.definition import parse
from tidelog.server.limits import Limits


def test_the_defaults_of_the_settings_are_those_of_the_limits() -> None:
    assert Limits.from_config(parse(BROKER, {})) == Limits()


def test_settings_become_limits() -> None:
    texts = {
        "max.connections": "5",
        "max.connections.per.ip": "2",
        "socket.request.max.bytes": "2000000",
        "connections.max.idle.ms": "1000",
        "queued.max.request.bytes": "3000000",
    }
    limits = Limits.from_config(parse(BROKER, texts))
    assert (limits.connections_max, limits.connections_per_address_max) == (5, 2)
    assert (limits.frame_bytes_max, limits.first_frame_bytes_max) == (2_000_000, 2_000_000)
    assert (limits.idle_ms_max, limits.memory_bytes_max) == (1000, 3_000_000)


def test_the_shortest_limit_on_time() -> None:
    assert Limits().shortest_ms() == 30_000
    assert Limits(idle_ms_max=5).shortest_ms() == Limits(frame_stall_ms_max=5).shortest_ms() == 5

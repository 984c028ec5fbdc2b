"""Which shard is responsible for a group or a transactional id: Kafka's choice, so that its directories open here."""


def partition_for(key: str, partitions: int) -> int:
    """Java's ``String.hashCode`` without its sign, modulo the number of partitions."""
    value = 0
    data = key.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    if value == 0x80000000:
        return 0  # The one number that has no positive twin in 32 bits.
    return (value if value < 0x80000000 else 0x100000000 - value) % partitions

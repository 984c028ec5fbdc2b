"""Blocks of producer ids follow each other, also over a restart of the image."""

import pytest

from tidelog.controller.errors import ApiError
from tidelog.controller.producer_ids import BLOCK_SIZE, PRODUCER_ID_MAX, allocate_producer_ids
from tidelog.metadata.image import ClusterImage
from tidelog.metadata.records import ProducerIdsRecord, decode_record, encode_record


def test_no_id_is_given_twice() -> None:
    image = ClusterImage()
    log: list[bytes] = []
    firsts = []
    for offset in range(5):
        result = allocate_producer_ids(image, 1, 7)
        firsts.append(result.response)
        log += [encode_record(record) for record in result.records]
        image.replay(result.records, offset)
    assert firsts == [number * BLOCK_SIZE for number in range(5)]
    again = ClusterImage()
    again.replay([decode_record(value)[0] for value in log], 5)
    assert allocate_producer_ids(again, 2, 8).response == 5 * BLOCK_SIZE


def test_the_last_block() -> None:
    image = ClusterImage()
    image.replay([ProducerIdsRecord(1, 1, PRODUCER_ID_MAX - BLOCK_SIZE + 1)], 0)
    with pytest.raises(ApiError, match="used up"):
        allocate_producer_ids(image, 1, 1)

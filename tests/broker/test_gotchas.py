"""The traps that real clients set, by the numbers of the protocol notes. Those of one API only are tests of that API:

1, 2, 6 in handlers/test_api_versions.py; 4, 12 in handlers/test_metadata.py and others; 7 in test_session.py and
handlers/test_produce.py; 8, 10 in handlers/test_fetch.py and others; 11 in handlers/test_describe_configs.py and test_acls.py.
"""

from tests.broker.harness import FakeClient, Machine
from tests.log.harness import batch
from tidelog.config.broker import BROKER
from tidelog.records.compression import CompressionType
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import FetchPartition, FetchRequest, FetchTopic
from tidelog.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from tidelog.wire.protocol import ApiKey


def ranges(client: FakeClient) -> dict[int, tuple[int, int]]:
    return {api.api_key: (api.min_version, api.max_version) for api in client.call(ApiKey.API_VERSIONS, 0).api_keys}


def test_gotcha_3_librdkafka_finds_zstd_by_the_ranges_of_produce_and_fetch() -> None:
    client = Machine().client()
    found = ranges(client)
    assert found[ApiKey.PRODUCE][1] >= 7
    assert found[ApiKey.FETCH][1] >= 10
    client.create_topic()
    assert client.append(records=batch(compression=CompressionType.ZSTD)).error is ErrorCode.NONE


def test_gotcha_4_ids_take_the_place_of_names() -> None:
    client = Machine().client()
    topic_id = client.create_topic()
    topics = [ProduceTopic(None, topic_id, [ProducePartition(0, memoryview(batch()))])]
    written = client.produce(ProduceRequest(None, -1, 1000, topics), 13)
    assert [(topic.name, topic.topic_id) for topic in written.topics] == [(None, topic_id)]
    wanted = [FetchTopic(None, topic_id, [FetchPartition(0, 0, 1 << 20)])]
    fetched = client.fetch(FetchRequest(-1, 0, 1, 1 << 20, 0, 0, -1, wanted, [], ""), 16)
    assert [(topic.name, topic.topic_id) for topic in fetched.topics] == [(None, topic_id)]
    assert fetched.topics[0].partitions[0].error is ErrorCode.NONE


def test_gotcha_5_transactions_of_version_2_are_finalized_in_a_new_cluster() -> None:
    """Clients choose by the level how they add partitions: it stands for Produce 12, TxnOffsetCommit 5 and EndTxn 5."""
    client = Machine().client()
    response = client.call(ApiKey.API_VERSIONS, 4, client_software_name="x", client_software_version="1")
    levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
    assert levels["transaction.version"] == 2
    served = ranges(client)
    assert served[ApiKey.PRODUCE][1] >= 12
    assert served[ApiKey.TXN_OFFSET_COMMIT][1] >= 5
    assert served[ApiKey.END_TXN][1] >= 5


def test_what_is_not_whole_is_not_advertised() -> None:
    found = ranges(Machine().client())
    later = (ApiKey.WRITE_SHARE_GROUP_STATE, ApiKey.SASL_HANDSHAKE, ApiKey.VOTE)
    assert not found.keys() & set(later)


def test_gotcha_9_the_address_by_default_is_127_0_0_1() -> None:
    assert BROKER.settings["listeners"].default == ("PLAINTEXT://127.0.0.1:9092",)

import pytest

from tests.broker.harness import FakeClient, Machine
from tidelog.broker.handlers import TABLE
from tidelog.metadata import features
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import decode_response
from tidelog.wire.protocol import ApiKey

SOFTWARE = {"client_software_name": "apache-kafka-java", "client_software_version": "4.0.0"}


@pytest.mark.parametrize("version", range(5))
def test_the_ranges_are_those_of_the_table(client: FakeClient, version: int) -> None:
    response = client.call(ApiKey.API_VERSIONS, version, **SOFTWARE)
    ranges = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert ranges == {key: api.advertised_versions or api.versions for key, api in TABLE.items()}
    assert [api.api_key for api in response.api_keys] == sorted(TABLE)


def test_produce_is_advertised_from_version_0_on(client: FakeClient) -> None:
    response = client.call(ApiKey.API_VERSIONS, 0)
    assert [(api.min_version, api.max_version) for api in response.api_keys if api.api_key == ApiKey.PRODUCE] == [(0, 13)]


def test_features_are_told(client: FakeClient, machine: Machine) -> None:
    response = client.call(ApiKey.API_VERSIONS, 3, **SOFTWARE)
    level = features.METADATA_VERSION_LEVEL
    assert [(feature.name, feature.min_version, feature.max_version) for feature in response.supported_features] == [
        ("metadata.version", level, level)
    ]
    assert {feature.name: (feature.min_version_level, feature.max_version_level) for feature in response.finalized_features} == {
        "metadata.version": (level, level),
        "transaction.version": (2, 2),
        "share.version": (1, 1),
    }
    assert response.finalized_features_epoch == machine.broker.image.last_offset


@pytest.mark.parametrize("software", ["", "-x", "x-", "a b", "näme"])
def test_a_strange_software_name_is_refused(client: FakeClient, software: str) -> None:
    response = client.call(ApiKey.API_VERSIONS, 3, client_software_name=software, client_software_version="1")
    assert response.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [5, 100])
def test_gotcha_1_an_unknown_version_gets_a_v0_body_with_error_35_and_key_18_only(client: FakeClient, version: int) -> None:
    frame, position = client.ask(ApiKey.API_VERSIONS, version, b"whatever")
    response = decode_response(ApiKey.API_VERSIONS, 0, frame, position)
    assert response.error_code == 35
    assert [(api.api_key, api.min_version, api.max_version) for api in response.api_keys] == [(18, 0, 4)]
    # Nothing else: error, one key.
    assert len(frame) - position == 2 + 4 + 6


def test_gotcha_2_the_response_header_is_v0_and_the_client_id_is_not_compact(client: FakeClient) -> None:
    # Key 18, version 3, correlation 7, client id "ab" with a two-byte length, no tags; then the body.
    client.send_bytes(b"\0\x12\0\x03\0\0\0\x07\0\x02ab\0" + b"\x02c\x021\0")
    (reply,) = client.replies
    assert reply[:4] == b"\0\0\0\x07"
    assert decode_response(ApiKey.API_VERSIONS, 3, memoryview(reply), 4).error_code == 0


def test_gotcha_6_features_whose_least_level_is_0_are_left_out_up_to_version_3(client: FakeClient) -> None:
    names = {}
    for version in (3, 4):
        response = client.call(ApiKey.API_VERSIONS, version, **SOFTWARE)
        names[version] = {feature.name: feature.min_version for feature in response.supported_features}
    level = features.METADATA_VERSION_LEVEL
    optional = {"transaction.version": 0, "share.version": 0, "kraft.version": 0}
    assert names == {3: {"metadata.version": level}, 4: {"metadata.version": level, **optional}}

import subprocess
import sys

import pytest

from tidelog.wire.protocol import ApiKey
from tidelog.wire.schema import Direction, field_in_any_version, message_schema, versions


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``code``."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split())


class TestImports:
    IMPORT_ALL = "import pkgutil, importlib, tidelog.wire as wire\n" + (
        "for module in pkgutil.iter_modules(wire.__path__): importlib.import_module('tidelog.wire.' + module.name)\n"
    )

    def test_importing_the_package_imports_nothing_of_kio(self) -> None:
        modules = modules_after(self.IMPORT_ALL)
        assert "tidelog.wire.messages" in modules
        assert not {name for name in modules if name.split(".")[0] == "kio"}

    def test_a_message_imports_its_own_definition_only_and_not_hypothesis(self) -> None:
        code = "from tidelog.wire.messages import encode_response\nencode_response(3, 12, {'cluster_id': 'c'})"
        modules = modules_after(code)
        definitions = {name for name in modules if name.startswith("kio.schema.") and name.endswith((".request", ".response"))}
        assert definitions == {"kio.schema.metadata.v12.request", "kio.schema.metadata.v12.response"}
        assert not {name for name in modules if name.split(".")[0] == "hypothesis"}

    def test_hypothesis_can_be_imported_afterwards(self) -> None:
        code = "from tidelog.wire.messages import encode_response\nencode_response(3, 12, {})\nimport hypothesis"
        assert "hypothesis.strategies" in modules_after(code)


class TestVersions:
    def test_of_an_api(self) -> None:
        assert versions(ApiKey.METADATA, Direction.REQUEST) == list(range(14))
        assert versions(ApiKey.CREATE_TOPICS, Direction.RESPONSE) == list(range(2, 8))

    def test_of_no_api(self) -> None:
        assert versions(4, Direction.REQUEST) == []

    @pytest.mark.parametrize(("api_key", "version"), [(4, 0), (ApiKey.METADATA, 14), (ApiKey.METADATA, -1)])
    def test_no_such_message(self, api_key: int, version: int) -> None:
        with pytest.raises(KeyError):
            message_schema(api_key, version, Direction.REQUEST)


class TestVocabulary:
    def test_every_time_is_in_milliseconds_and_says_so(self) -> None:
        fields = {field.name: field for field in message_schema(ApiKey.PRODUCE, 9, Direction.RESPONSE).fields}
        assert fields["throttle_time_ms"].type == "int32"
        request = {field.name: field for field in message_schema(ApiKey.OFFSET_COMMIT, 2, Direction.REQUEST).fields}
        assert request["retention_time_ms"].type == "int64"
        assert request["retention_time_ms"].default == -1

    def test_an_id_is_never_null(self) -> None:
        topic = next(field for field in message_schema(ApiKey.METADATA, 12, Direction.REQUEST).fields if field.name == "topics")
        assert topic.is_array
        assert topic.is_nullable
        assert topic.struct is not None
        topic_id = topic.struct.fields[0]
        assert (topic_id.name, topic_id.is_nullable, topic_id.default) == ("topic_id", False, bytes(16))

    def test_error_codes_are_integers(self) -> None:
        (error_code, *_) = message_schema(ApiKey.API_VERSIONS, 0, Direction.RESPONSE).fields
        assert (error_code.type, error_code.default) == ("int16", 0)

    def test_a_time_that_may_be_missing(self) -> None:
        path = ("responses", "partition_responses")
        field = field_in_any_version(ApiKey.PRODUCE, Direction.RESPONSE, path, "log_append_time_ms")
        assert field is not None
        assert (field.is_nullable, field.default) == (False, -1)


class TestFieldInAnyVersion:
    def test_the_newest_definition_counts(self) -> None:
        field = field_in_any_version(ApiKey.METADATA, Direction.REQUEST, (), "topics")
        assert field is not None
        assert field.struct is not None
        assert field.struct.version == 13

    def test_of_a_struct_that_the_newest_version_lacks(self) -> None:
        assert field_in_any_version(ApiKey.OFFSET_FETCH, Direction.REQUEST, ("topics",), "partition_indexes") is not None

    @pytest.mark.parametrize(("path", "name"), [((), "topic"), (("topics",), "nmae"), (("nowhere",), "name")])
    def test_in_no_version(self, path: tuple[str, ...], name: str) -> None:
        assert field_in_any_version(ApiKey.METADATA, Direction.REQUEST, path, name) is None

"""The clients that can be members, by name."""

from tests.compatibility.clients.groups.aiokafka_member import AiokafkaMember
from tests.compatibility.clients.groups.confluent_member import ConfluentConsumerProtocolMember, ConfluentMember
from tests.compatibility.clients.groups.kafka_python_member import KafkaPythonMember
from tests.compatibility.clients.groups.member import Member

CONFLUENT = ConfluentMember.client
CONFLUENT_CONSUMER = ConfluentConsumerProtocolMember.client
KAFKA_PYTHON = KafkaPythonMember.client
AIOKAFKA = AiokafkaMember.client

MEMBERS: dict[str, type[Member]] = {
    each.client: each for each in (ConfluentMember, ConfluentConsumerProtocolMember, KafkaPythonMember, AiokafkaMember)
}
CLASSIC = (CONFLUENT, KAFKA_PYTHON, AIOKAFKA)

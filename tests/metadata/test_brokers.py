import pytest

from tidelog.metadata.brokers import BrokerImage, BrokersImage
from tidelog.metadata.records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    InconsistentRecord,
    RegisterBrokerRecord,
    SupportedFeature,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)

INCARNATION = b"p" * 16
DIRECTORY = b"d" * 16
ENDPOINT = BrokerEndpoint("PLAINTEXT", "host", 9092, 0)
FEATURE = SupportedFeature("metadata.version", 30, 30)


def registered(fenced: bool = True) -> BrokersImage:
    brokers = BrokersImage()
    brokers.register(
        RegisterBrokerRecord(1, False, INCARNATION, 12, (ENDPOINT,), (FEATURE,), "rack", fenced=fenced, log_dirs=(DIRECTORY,))
    )
    return brokers


def broker_of(brokers: BrokersImage) -> BrokerImage:
    broker = brokers.find(1)
    assert broker is not None
    return broker


def test_a_registration_is_kept() -> None:
    brokers = registered()
    assert list(brokers) == [BrokerImage(1, 12, INCARNATION, (ENDPOINT,), (FEATURE,), "rack", True, False, (DIRECTORY,))]
    assert 1 in brokers
    assert 2 not in brokers
    assert len(brokers) == 1
    assert not brokers.is_active(1)
    assert not brokers.is_active(2)


def test_fencing_and_unfencing_in_both_forms() -> None:
    brokers = registered()
    brokers.fence(UnfenceBrokerRecord(1, 12))
    assert brokers.is_active(1)
    brokers.fence(FenceBrokerRecord(1, 12))
    assert not brokers.is_active(1)
    brokers.change(BrokerRegistrationChangeRecord(1, 12, fenced=-1))
    assert brokers.is_active(1)
    brokers.change(BrokerRegistrationChangeRecord(1, 12))
    assert brokers.is_active(1)
    brokers.change(BrokerRegistrationChangeRecord(1, 12, fenced=1))
    assert not brokers.is_active(1)


def test_a_broker_that_shuts_down_stays_so_until_it_registers_again() -> None:
    brokers = registered(fenced=False)
    brokers.change(BrokerRegistrationChangeRecord(1, 12, in_controlled_shutdown=1))
    brokers.change(BrokerRegistrationChangeRecord(1, 12, log_dirs=(INCARNATION,)))
    broker = broker_of(brokers)
    assert broker.in_controlled_shutdown
    assert not broker.is_active
    assert broker.log_dirs == (INCARNATION,)
    brokers.change(BrokerRegistrationChangeRecord(1, 12))
    assert broker_of(brokers).log_dirs == (INCARNATION,)


def test_an_unregistered_broker_is_gone() -> None:
    brokers = registered()
    brokers.unregister(UnregisterBrokerRecord(1, 12))
    assert brokers.find(1) is None


def test_records_of_another_process_or_broker_do_not_fit() -> None:
    brokers = registered()
    with pytest.raises(InconsistentRecord, match="registered with epoch 12"):
        brokers.change(BrokerRegistrationChangeRecord(1, 11, fenced=-1))
    with pytest.raises(InconsistentRecord, match="not registered"):
        brokers.fence(FenceBrokerRecord(2, 12))
    with pytest.raises(InconsistentRecord):
        brokers.unregister(UnregisterBrokerRecord(1, 13))

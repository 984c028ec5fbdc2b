"""Which quota a client has: the most specific one of Kafka's eight.

    1. its user and its client id        4. the default user and its client id      7. its client id
    2. its user and the default id       5. both defaults                           8. the default id
    3. its user                          6. the default user

The one that is found also says who shares it: a quota of a user is one for all of that user's clients, every other is each
client's own. A client without a client id has only quotas of users. Without authentication every user is ANONYMOUS.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tidelog.metadata.client_quotas import CLIENT_ID, IP, USER, ClientQuotasImage, QuotaEntity, quota_entity

ANONYMOUS = "ANONYMOUS"


class Limit(NamedTuple):
    bound: float
    shared_by: tuple[str, str]
    """User and client id whose use is counted together; "" for any."""


def find_limit(image: ClientQuotasImage, key: str, user: str, client_id: str) -> Limit | None:
    for entity, shared_by in _candidates(user, client_id):
        bound = image.find(entity).get(key)
        if bound is not None:
            return Limit(bound, shared_by)
    return None


def find_address_limit(image: ClientQuotasImage, key: str, host: str) -> Limit | None:
    for name in (host, None):
        bound = image.find(quota_entity([(IP, name)])).get(key)
        if bound is not None:
            return Limit(bound, (host, ""))
    return None


def _candidates(user: str, client_id: str) -> Iterator[tuple[QuotaEntity, tuple[str, str]]]:
    for user_name in (user, None):
        if client_id:
            yield quota_entity([(USER, user_name), (CLIENT_ID, client_id)]), (user, client_id)
            yield quota_entity([(USER, user_name), (CLIENT_ID, None)]), (user, client_id)
        yield quota_entity([(USER, user_name)]), (user, "")
    if client_id:
        yield quota_entity([(CLIENT_ID, client_id)]), ("", client_id)
        yield quota_entity([(CLIENT_ID, None)]), ("", client_id)

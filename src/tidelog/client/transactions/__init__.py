"""The calls about transactions that librdkafka lacks: who has which open, which are hanging, and how to end those.

    from tidelog.client.transactions.admin import TransactionAdmin

    with TransactionAdmin("127.0.0.1:9092") as admin:
        admin.list_transactions(states=["Ongoing"])

A small synchronous client on our own codecs. It speaks plaintext only, and says so where TLS or SASL would be needed.
"""

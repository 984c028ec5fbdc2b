"""The calls about transactions that librdkafka lacks: list and describe them, find those that hang, and end them.

    from tidelog.client.transactions.admin import TransactionAdmin

    with TransactionAdmin("127.0.0.1:9092") as admin:
        admin.list_transactions(states=["Ongoing"])

They go through ``client.wire``, in plaintext only. ``fenced_writer`` writes single records as a compare-and-set.
"""

"""The cluster's metadata: its records, and the image that replaying them gives.

``records`` has the records and their bytes. ``image`` replays them; its parts are ``topics``, ``brokers``, ``configs`` and
``client_quotas``. ``features`` lists what a cluster can finalize.
"""

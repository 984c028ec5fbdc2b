"""Coordinators decide, then replay: the runtime that groups, transactions and queue state share.

A coordinator's state lives in an internal topic, with one state machine per partition: a *shard*. A request decides on the
shard's state and returns records and a response. The records go to the log. Only their replay changes the state that a restart
must find again, and the same replay rebuilds it after a crash. The response, like every read that is answered to a client, waits
until the records that it depends on are below the high watermark. When an append fails or leadership is lost, the shard is
dropped and reloaded from the log; it is never patched.
"""

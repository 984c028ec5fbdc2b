"""The storage engine: everything between a record batch and the disk.

data_directory   all partition logs of a broker, opened, committed, cleaned and closed together
partition_log    one partition: appending, rolling, truncating, and the offsets that describe it
reading          what a fetch or an offset lookup gets out of a log
append_check     which batches may be written
leader_epochs    which leader wrote which offsets
settings         the options of a topic's log and of a data directory
segments/        a segment's files: batches and the indexes that find things in them
producers/       idempotence and transactions: the state of the producers of a log, and its snapshots
durability/      group commit, the journal of durable marks, checkpoints, truncation that survives a crash
recovery/        opening a log and a data directory, after a clean stop or a crash
retention/       deleting what is too old or too much
compaction/      keeping the newest record of each key
inspection/      dump, verify and repair without a broker
"""

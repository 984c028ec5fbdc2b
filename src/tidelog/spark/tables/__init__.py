"""Delta tables that pipelines fill, without a jar: executors write Parquet files, the driver commits them through ``deltalake``.

``data_files`` writes files on executors, ``lake_table`` is the table as the driver sees it, ``table_sink`` holds the sinks that
Spark calls, and ``upkeep`` merges small files and removes old ones. Needs ``tidelog[pipelines]``.
"""

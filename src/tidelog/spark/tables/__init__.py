"""Delta tables that pipelines fill, without a jar: executors write Parquet files, the driver commits them through ``deltalake``.

``lake_table`` is the table as the driver sees it, ``data_files`` what an executor writes. Needs ``tidelog[pipelines]``.
"""

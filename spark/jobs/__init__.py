"""Jobs that people expect, each a function of a Spark session and a command.

    python -m spark.jobs.verify --uri zk://host:2181/ledgers --ledgers all --report report
    quire spark verify --ledgers all --report report
    spark-submit --py-files quire.zip spark/submit.py verify --uri ... --ledgers all --report ...

The zip holds the packages wire, runtime, metadata, ledger_client and spark and the module
pyspark_ledger; what they depend on (trio, kazoo, crc32c, protobuf, pyarrow) must be installed for
the Python of the executors.
"""

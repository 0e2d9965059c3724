"""Ledgers as DataFrames: the data source `ledger` for PySpark.

Nobody imports this package: Spark finds the source through the top-level module `pyspark_ledger`,
and the parts here are loaded in whichever of Spark's processes needs them. What decides is in
`core/` and knows neither Spark nor the network.
"""

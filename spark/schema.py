"""The columns, and which of them a caller gets.

Spark prunes no columns of Python sources, so callers do it themselves: with `.schema(...)` they
name what they want, in their order, and nothing else is shipped.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark.errors import BadOptionError
from spark.options import ENTRIES, LEDGERS

_CUSTOM: Final = MapType(StringType(), BinaryType(), valueContainsNull=False)

#: In every schema unless the caller names other columns.
_DEFAULT: Final = (
    StructField("ledger_id", LongType(), nullable=False),
    StructField("entry_id", LongType(), nullable=False),
    StructField("payload", BinaryType(), nullable=True),
    StructField("length", IntegerType(), nullable=False),
)
#: Only when named, or with includeMetadata=true.
_ON_REQUEST: Final = (
    StructField("last_confirmed", LongType(), nullable=True),
    StructField("ledger_ctime", TimestampType(), nullable=True),
    StructField("metadata", _CUSTOM, nullable=True),
    StructField("status", StringType(), nullable=False),
)
_LEDGERS: Final = (
    StructField("ledger_id", LongType(), nullable=False),
    StructField("state", StringType(), nullable=False),
    StructField("first_entry", LongType(), nullable=True),
    StructField("last_entry", LongType(), nullable=True),
    StructField("bytes", LongType(), nullable=True),
    StructField("ctime", TimestampType(), nullable=True),
    StructField("ensemble_size", IntegerType(), nullable=False),
    StructField("write_quorum", IntegerType(), nullable=False),
    StructField("ack_quorum", IntegerType(), nullable=False),
    StructField("digest_type", StringType(), nullable=True),
    StructField("metadata", _CUSTOM, nullable=True),
)

_FIELDS: Final = {ENTRIES: _DEFAULT + _ON_REQUEST, LEDGERS: _LEDGERS}


def default_schema(table: str, *, include_metadata: bool = False) -> StructType:
    if table == LEDGERS:
        return StructType(list(_LEDGERS))
    return StructType(list(_DEFAULT + _ON_REQUEST if include_metadata else _DEFAULT))


def check_schema(schema: StructType, table: str) -> StructType:
    """The columns that a caller named, if the table has them with these types.

    Columns of a `.schema(...)` are nullable whatever the source says, and that is what the rows
    must then be; so nullability is taken as given.
    """
    known = {field.name: field for field in _FIELDS[table]}
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise BadOptionError(f"the schema names the column {name} twice")
    for field in schema.fields:
        if field.name not in known:
            raise BadOptionError(
                f"the table {table} has no column {field.name}: there are {', '.join(known)}"
            )
        wanted = known[field.name].dataType
        if not _same_type(field.dataType, wanted):
            raise BadOptionError(
                f"column {field.name} is {wanted.simpleString()}, and the schema says "
                f"{field.dataType.simpleString()}: cast it after loading"
            )
        if known[field.name].nullable and not field.nullable:
            raise BadOptionError(f"column {field.name} may be null, and the schema forbids it")
    return schema


def _same_type(given: object, wanted: object) -> bool:
    if isinstance(given, MapType) and isinstance(wanted, MapType):
        return given.keyType == wanted.keyType and given.valueType == wanted.valueType
    return given == wanted

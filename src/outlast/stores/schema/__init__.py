"""Whether the tables in the database are the tables we work on.

In: an engine or connection, and the tables. Out: advice, or one `SchemaError` that names every
finding. Reads the catalogue only; never issues DDL, never repairs.
"""

from outlast.stores.schema.validate import validate_schema

__all__ = ["validate_schema"]

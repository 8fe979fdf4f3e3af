"""Whether the tables in the database are the tables we work on, and the SQL that makes them so.

In: an engine or connection, and the tables. Out: advice, one `SchemaError` that names every
finding, or a plan. Reads the catalogue only; never issues DDL, never repairs.
"""

from outlast.stores.schema.plan import schema_plan, schema_steps
from outlast.stores.schema.validate import SchemaState, schema_state, validate_schema

__all__ = ["SchemaState", "schema_plan", "schema_state", "schema_steps", "validate_schema"]

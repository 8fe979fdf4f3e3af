"""Everything cold the desk does with the tables, once for PostgreSQL and SQLite, in Core.

In: a connection and found tables. Out: values. Called by `ops` only; access, masking and audit text
are decided there. No statement here is made from anybody's text: values are bound.
"""

"""The front door: what an application publishes becomes rows of its own transaction.

In: encoded bytes, headers, a session or connection. Out: rows, or an error before anything was
sent. Never commits, flushes or begins: the transaction belongs to the caller.
"""

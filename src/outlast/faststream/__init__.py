"""DOOR. The FastStream broker: it hands deliveries to FastStream and reads its verdicts.

It adds form, never behaviour: claiming, leasing and settling are the engine's, inserting is the
front door's. Every private FastStream name comes through `upstream`, and through nothing else.
"""

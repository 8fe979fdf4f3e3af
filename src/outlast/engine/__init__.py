"""ROOM 2. Claim, dispatch, settle, lease, wake, look, drain: plain asyncio over a `Store`.

Knows no database and no framework: it gets a store, a `deliver` and an `emit`.
"""

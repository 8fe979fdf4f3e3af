"""`outlast demo`: a small shop on one SQLite file, and the proof that it lost nothing.

`shop` is what an application would write; the rest watches it. Only the command line may call.
"""

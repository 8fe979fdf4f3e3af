"""The memory store: the test double, held to the same contract as the databases."""

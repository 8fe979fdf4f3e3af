"""The one source of randomness. Tests and simulations replace `uniform`."""

import random
from collections.abc import Callable

uniform: Callable[[float, float], float] = random.uniform


def spread(seconds: float, factor: float) -> float:
    """`seconds` times `1 + U(-factor/2, +factor/2)`."""
    if not factor:
        return seconds
    return seconds * (1 + uniform(-factor / 2, factor / 2))

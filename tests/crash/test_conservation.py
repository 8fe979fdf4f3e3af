"""Conservation, short: every published message is in one place at every instant."""

from collections.abc import Callable

from tests.crash.conservation import Conservation
from tests.crash.scene import Scene


def test_every_message_is_in_one_place(scene: Callable[..., Scene]) -> None:
    """S2-20 S4-33: with operators at random, beside workers that are killed."""
    balance = Conservation(
        scene=scene(lease=1.5, hooked=False, workers=4), snapshots=60, messages=600
    ).run()
    print(balance)
    assert not balance.wrong, balance
    assert balance.caught, "a letter vanished and the books still balanced"
    assert {"replay", "mend", "discard", "recall"} <= set(balance.acts), balance
    assert balance.kills.total() >= 3

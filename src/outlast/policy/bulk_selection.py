"""What a replay by filter takes, and what it leaves out by rule and tells.

In: the filter as it was given. Out: the filter that is acted on, and one filter for each kind of
letter that is left out. Leaving out is no refusal: nobody asked for these.
"""

from typing import NamedTuple

from outlast.model.query import LISTED_STATES, OPEN, Condition, Query, Term
from outlast.policy.classify import POISON

_POISON = Condition("=", POISON)


class LeftOutKind(NamedTuple):
    """Letters that are told: what they are, and the filter that selects them."""

    kind: str
    query: Query


class BulkSelection(NamedTuple):
    """`taken` is what is counted, confirmed and acted on."""

    taken: Query
    left_out: tuple[LeftOutKind, ...] = ()


def bulk_selection(query: Query, *, include_poison: bool = False) -> BulkSelection:
    """Open letters without POISON, unless the filter names states or poison is included."""
    if query.names_states:
        return BulkSelection(query)
    terms = query.terms()
    left_out = [
        LeftOutKind(state, Query.gather([*terms, _is_in(state)]))
        for state in LISTED_STATES
        if state != OPEN and state in query.states
    ]
    taken = [*terms, _is_in(OPEN)]
    if not include_poison:
        taken.append(("category", (), True, _POISON))
        if _may_have_poison(query) and OPEN in query.states:
            others = [term for term in terms if term[0] != "category" or term[2]]
            poison: Term = ("category", (), False, _POISON)
            left_out.append(LeftOutKind(POISON, Query.gather([*others, poison, _is_in(OPEN)])))
    return BulkSelection(Query.gather(taken), tuple(left_out))


def _is_in(state: str) -> Term:
    return "state", (), False, Condition("=", state)


def _may_have_poison(query: Query) -> bool:
    for word in query.words:
        if word.name == "category" and (_POISON in word.alternatives) is word.negated:
            return False
    return True

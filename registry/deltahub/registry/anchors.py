"""When a tensor should stand alone although a delta would be smaller."""


def pays_as_anchor(alone: float, reachable: float, direct: float) -> bool:
    """Whether a tensor at the end of a full chain should begin a new one.

    All as shares of its raw bytes: standing alone, as a delta of the nearest base that the
    depth allows, and as a delta of its real predecessor, which lies too deep (alone again, where
    there is none). The next one in the line will be in the same place: it saves what lies between
    reachable and direct if this tensor is an anchor, and that is worth what the anchor costs now.
    """
    cost = alone - reachable
    saving_of_a_child = reachable - direct
    return saving_of_a_child > cost

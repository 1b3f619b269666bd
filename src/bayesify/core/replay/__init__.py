"""Replay of the computation before the first random layer (README.md)."""

from bayesify.core.replay.marks import mark, mark_of
from bayesify.core.replay.prefix import Prefix, PrefixError, ReplayPass, has_prefix, is_worth_replay, leaves_stand_ins

__all__ = [
    "Prefix",
    "PrefixError",
    "ReplayPass",
    "has_prefix",
    "is_worth_replay",
    "leaves_stand_ins",
    "mark",
    "mark_of",
]

"""counted: a number with its noun, singular or plural, for logs and terminals."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """The number and what it counts: "1 thread", "2,048 threads".

    Args:
        number: How many.
        noun: In the singular; its plural must be made with an s.
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

"""Exercises that check themselves, and pass when nobody has tried them yet."""

from collections.abc import Callable

from helpers._arguments import checked


@checked
def check(
    answer, right: Callable[[object], bool], because: str, hint: str = ""
) -> None:
    """Say whether an answer is right; an answer of None is one not given yet.

    Args:
        answer: what the reader wrote.
        right: takes the answer and says whether it is right; an answer of a kind that
            it cannot handle is a wrong answer, not an error.
        because: the reason, told once the answer is right.
        hint: told when it is not.
    """
    if answer is None:
        print("Not attempted yet: replace None by your answer and run the cell again.")
        return
    try:
        correct = bool(right(answer))
    except Exception:
        correct = False
    if correct:
        print(f"Right. {because}")
    else:
        print(f"Not yet: {answer!r} is not it. {hint or 'The answer is below.'}")

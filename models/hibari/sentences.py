"""Sentences of a text that is still being written."""

from __future__ import annotations

import re

ENDS = ".!?…"
CLOSERS = "\"'”’»)]}*_~`"
OPENERS = "\"'“‘«([{*_~`"

# fmt: off
# Words whose dot does not end a sentence, whatever comes next ...
_TITLES = frozenset({
    "Mr", "Mrs", "Ms", "Mx", "Dr", "Prof", "St", "Mt", "Ft", "Gen", "Gov", "Sen", "Rep", "Capt", "Lt", "Col", "Sgt",
    "Cmdr", "Rev", "Hon", "Pres", "Supt", "Cpl", "Maj", "Adm", "Msgr", "Fr", "Messrs",
    "vs", "cf", "viz", "approx", "ca",
})
# ... and those whose dot does not end it before a number.
_NUMBERED = frozenset({
    "No", "Nos", "no", "nos", "Vol", "vol", "Fig", "fig", "Figs", "Ch", "ch", "Sec", "sec", "Eq", "Art", "p", "pp",
    "Pt", "Op", "op", "Rm", "Apt", "Ste", "Jan", "Feb", "Mar", "Apr", "Jun", "Jul", "Aug", "Sep", "Sept", "Oct", "Nov",
    "Dec",
})
# fmt: on
_LETTERS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")  # U.S, e.g, p.m
_ITEM = re.compile(r"\(?(?:\d{1,3}|[A-Za-z])")  # the number of a list item
_SPACE = re.compile(r"\s+")


class Sentences:
    """Cuts text into sentences as it comes. How the text is cut into chunks makes no difference: each white space is
    looked at once, when the character behind it is there."""

    def __init__(self) -> None:
        self._text = ""
        self._seen = 0  # up to here no sentence ends

    def push(self, text: str) -> list[str]:
        """The sentences that are complete now."""
        self._text += text
        found = []
        start = 0
        for space in _SPACE.finditer(self._text, self._seen):
            if space.end() == len(self._text):
                break
            if ends_sentence(self._text[start : space.start()], space.group(), self._text[space.end()]):
                found.append(self._text[start : space.start()].strip())
                start = space.end()
            self._seen = space.end()
        self._text = self._text[start:]
        self._seen = max(0, self._seen - start)
        return found

    def close(self) -> list[str]:
        """What is left, at the end of the text."""
        rest, self._text, self._seen = self._text.strip(), "", 0
        return [rest] if rest else []


def ends_sentence(before: str, space: str, following: str) -> bool:
    """Whether a sentence ends at a white space.

    Args:
        before: the text since the last end.
        following: the next character.
    """
    if not before.strip():
        return False
    ended = before.rstrip(CLOSERS)
    if "\n" in space:  # a line that goes on in lower case was only wrapped
        return not following.islower() or space.count("\n") > 1 or ended.endswith(tuple(ENDS))
    if not ended.endswith(tuple(ENDS)) or following.islower():
        return False
    if not ended.endswith(".") or ended.endswith(".."):
        return True
    words = ended[:-1].rsplit(None, 2)  # only the last two matter, so a long text costs no more
    word = words[-1].lstrip(OPENERS) if words else ""
    if word in _TITLES or (word in _NUMBERED and following.isdigit()):
        return False
    if _ITEM.fullmatch(word) and (len(words) == 1 or words[-2].endswith((":", ";"))):  # "1. Boil the water."
        return False
    if len(word) == 1 and word.isupper() and word != "I":  # J. K. Rowling
        return False
    return not _LETTERS.fullmatch(word) or word.lower() in ("a.m", "p.m")

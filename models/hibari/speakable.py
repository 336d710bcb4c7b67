"""Written text into what can be read aloud: what the package's own normaliser is not made for.

Language models write Markdown, links, tables and emoji; people write prices, ranges and addresses. Each row of the
table is one such thing. All it leaves alone (dates, times, units, ordinals, titles) the package reads right.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable

Replacement = str | Callable[[re.Match[str]], str]

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_SCALE = r"(?!\s?(?:hundred|thousand|million|billion|trillion)\b|[kKmMbB]\b)"
_CURRENCY = {"$": ("dollar", "dollars", "cents"), "£": ("pound", "pounds", "pence"), "€": ("euro", "euros", "cents")}
_DOMAINS = "com|org|net|edu|gov|io|co|uk|de|fr|info|biz|us|ca|au|tv|me|ai|dev|app|eu|int"
_IN_ADDRESS = {
    ".": "dot", "/": "slash", "@": "at", "-": "dash", "_": "underscore", "?": "question mark", "&": "and",
    "=": "equals", "#": "hash", ":": "colon", "~": "tilde", "+": "plus", "%": "percent",
}  # fmt: skip


def speakable(text: str) -> str:
    """One sentence as words and punctuation; "" when there is nothing to say in it."""
    text = unicodedata.normalize("NFC", html.unescape(_TAG.sub(" ", text)))
    text = " ".join("".join(map(_plain, text)).split())
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return " ".join(_LONG_RUN.sub(_broken, text).split())


def _plain(char: str) -> str:
    """Letters in fancy dress (𝐛𝐨𝐥𝐝, ｗｉｄｅ) as letters; invisible characters, pictures and emoji as nothing."""
    if char in "\n\t":
        return " "
    if "\U0001d400" <= char <= "\U0001d7ff" or "！" <= char <= "～":
        return unicodedata.normalize("NFKC", char)
    category = unicodedata.category(char)
    if category in ("Cc", "Cf", "Cs", "Co", "Cn") or "\ufe00" <= char <= "\ufe0f" or char in "\u20e3🏻🏼🏽🏾🏿":
        return ""
    return " " if category == "So" and char not in "°©®™" else char


def _address(match: re.Match[str]) -> str:
    text = re.sub(r"^(?:https?://)?(?:www\.)?", "", match.group(), flags=re.IGNORECASE)
    tail = re.search(r"[.,;:!?)\]}>\"'”’…]*$", text)
    end = tail.group() if tail else ""
    body = text.removesuffix(end).rstrip("/")
    return re.sub(r"[./@\-_?&=#:~+%]", lambda m: f" {_IN_ADDRESS[m.group()]} ", body) + end


def _money(match: re.Match[str]) -> str:
    one, many, small = _CURRENCY[match["sign"]]
    whole, _, part = match["amount"].partition(".")
    if match["upto"]:
        return f"{match['amount']} to {match['upto']} {many}"
    if len(part) != 2:
        return f"{match['amount']} {one if match['amount'] == '1' else many}"
    cents = f"{int(part)} {small if int(part) != 1 else small.removesuffix('s')}"
    units = f"{whole} {one if whole == '1' else many}"
    return cents if whole == "0" else f"{units} and {cents}" if int(part) else units


def _broken(match: re.Match[str]) -> str:
    """A run without a space, in words: the package takes minutes for it, and reads 24 letters of an unknown word."""
    return re.sub(r"\w{24}(?=\w)", r"\g<0> ", re.sub(r"[^\w']+|'{2,}", " ", match.group()))


def _digits(match: re.Match[str]) -> str:
    return " ".join(re.sub(r"\D", "", match.group()))


def _phone(match: re.Match[str]) -> str:
    """Groups of digits, one by one, with a comma's pause between the groups."""
    return ", ".join(" ".join(group) for group in re.findall(r"\d+", match.group()))


def _decimal(match: re.Match[str]) -> str:
    """With its last zeros: 3.10 is three point one zero."""
    whole, _, part = match.group().partition(".")
    return f"{whole} point {' '.join(part)}"


# Repetitions that could start anywhere are bounded: no text of a request takes more than a moment.
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<!--.{0,500}?-->")
_LONG_RUN = re.compile(r"\S{60,}")
_REWRITES: tuple[tuple[re.Pattern[str], Replacement], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        # Markdown
        (r"^\s*(?:[-*_=]\s*){3,}$", ""),  # a rule
        (r"^[\s|:\-+]+$", ""),  # the line below the head of a table
        (r"^\s*(?:```|~~~)\s*\w*", " "),
        (r"^\s*>+\s*", ""),
        (r"^\s*#{1,6}\s+", ""),
        (r"^\s*[-*+•‣◦–]\s+(?:\[[ xX]\]\s+)?", ""),
        (r"!?\[([^\]]{0,500})\]\([^)]{0,500}\)", r"\1"),
        (r"\[\^?\d+\]", ""),  # a footnote
        (r"(?<=[\d)]) ?\* ?(?=[\d(])", " times "),
        (r"\*+|~~|`+", ""),
        # addresses
        (r"(?i)\b(?:https?://|www\.)[^\s<>]+", _address),
        (r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+", _address),
        (rf"(?i)\b(?:[a-z0-9-]{{1,63}}\.){{1,8}}(?:{_DOMAINS})\b(?:/[^\s<>]*)?(?![\w.]\w)", _address),
        # names and signs
        (r"\b([CF])#", r"\1 sharp"),
        (r"(?<!\w)\.NET\b", "dot net"),
        (r"\bCO2\b|CO₂", "C O 2"),
        (r"\b24/7\b", "24 7"),
        (r"\s*(?:[-=]>|[⇒➔])\s*", " → "),
        (r"≈\s*", " about "),
        (r"\s*≥\s*", " at least "),
        (r"\s*≤\s*", " at most "),
        (r"\s*≠\s*", " is not "),
        # prices
        (r"[-−](?=[$£€]\d)", "minus "),
        (
            rf"(?P<sign>[$£€])\s?(?P<amount>{_NUMBER})(?:\s?[-–—]\s?[$£€]?(?P<upto>{_NUMBER}))?(?![\d,.]*\d){_SCALE}",
            _money,
        ),
        # numbers
        (r"(?<=[\w)])(?: − |−)(?=[\w(])|(?<=\d) - (?=\d[^=]*=)", " minus "),
        (r"−", "-"),
        (r"(?<![\w.])\.(?=\d)", "0."),
        (r"(?:\+\d{1,3}[ -])?(?:\(\d{3}\) ?|\b\d{3}[ .-])\d{3}[ .-]\d{4}\b", _phone),
        (r"\d{16,}|\b\d{1,3}(?:,\d{3}){5,}\b", _digits),  # the package has no words for the largest
        (r"\b\d+(?:\.\d+){2,}\b", lambda m: " point ".join(m.group().split("."))),
        (r"\b[vV](?=\d+\.\d)", "version "),
        (r"(?<=[\d%])\s?[-–]\s?(?=\d+(?:\.\d+|%))|(?<=\.\d)\s?[-–]\s?(?=\d)", " to "),
        (r"(?i)(?:(?<=\d[ap]m)|(?<=\d:\d\d))\s?[-–]\s?(?=\d)", " to "),
        (r"(?<![\d,.:/\-$£€])0\d+\b(?![\d,.:/\-])", _digits),
        (r"(?<![\d.,$£€])\d+(?:,\d{3})*\.\d*0\b(?![.\d])", _decimal),
        (r"(\d)['′](\d{1,2})[\"″]", r"\1 foot \2"),
        (r"(?<=\d) ?m²", " square meters"),
        (r"(?<=\d) ?km²", " square kilometers"),
        (r"(?<=\d) m\b(?![./]\w|/)", " meters"),
        (r"(?<=\d)\s?(?:[aA]\.?[mM])\b\.?", " A.M."),
        (r"(?<=\d)\s?(?:[pP]\.?[mM])\b\.?", " P.M."),
    )
)

"""Text as it is written becomes text that can be read aloud."""

from __future__ import annotations

import pytest

from models.hibari.speakable import speakable


@pytest.mark.parametrize(
    ("written", "read"),
    [
        # Markdown
        ("**Bold**, *italic*, `code` and ~~struck~~.", "Bold, italic, code and struck."),
        ("**Only the start", "Only the start"),
        ("## A heading", "A heading"),
        ("- an item", "an item"),
        ("* [x] a task", "a task"),
        ("> a quote", "a quote"),
        ("See [the docs](https://a.org/b_c).", "See the docs."),
        ("![a cat](cat.png)", "a cat"),
        ("Say [it](/ɪt/).", "Say it."),
        ("As shown.[1]", "As shown."),
        ("---", ""),
        ("|---|:-:|", ""),
        ("```python", ""),
        ("5 * 3, 5*3", "5 times 3, 5 times 3"),
        # pictures and dress
        ("Hello 😀👍🏽!", "Hello !"),
        ("😀", ""),
        ("1️⃣ first", "1 first"),
        ("𝐁𝐨𝐥𝐝 ｗｉｄｅ", "Bold wide"),
        ("zero\u200bwidth\u00ad", "zerowidth"),
        ("<b>tag</b> &amp; entity", "tag & entity"),
        ("a < b and b > c", "a < b and b > c"),
        # addresses
        ("At https://www.example.com/a-b?c=1.", "At example dot com slash a dash b question mark c equals 1."),
        ("Try github.com, or wiki.example.org/x/!", "Try github dot com, or wiki dot example dot org slash x!"),
        ("Mail bob.smith@example.org.", "Mail bob dot smith at example dot org."),
        ("It ended.Then it began.", "It ended.Then it began."),
        # prices
        ("$3", "3 dollars"),
        ("$1", "1 dollar"),
        ("$3.50, 20 people", "3 dollars and 50 cents, 20 people"),
        ("$0.99 and £1.01", "99 cents and 1 pound and 1 pence"),
        ("€1,000.", "1,000 euros."),
        ("$5-10", "5 to 10 dollars"),
        ("-$5", "minus 5 dollars"),
        ("$2.5 million", "$2.5 million"),
        ("$3M", "$3M"),
        # numbers
        ("7 − 3 = 4, 9 - 5 = 4", "7 minus 3 = 4, 9 minus 5 = 4"),
        ("it is −5°C", "it is -5°C"),
        ("pages 10 - 20", "pages 10 - 20"),
        (".5 and 0.5", "0.5 and 0.5"),
        ("Python 3.10", "Python 3 point 1 0"),
        ("1.2.3 and v2.5", "1 point 2 point 3 and version 2.5"),
        ("3.5-4.5, 5-10%, 10%-20%", "3.5 to 4.5, 5 to 10%, 10% to 20%"),
        ("9am-5pm, 9:00-17:00", "9 A.M. to 5 P.M., 9:00 to 17:00"),
        ("(555) 123-4567", "5 5 5, 1 2 3, 4 5 6 7"),
        ("agent 007 on 2024-01-05 at 08:05", "agent 0 0 7 on 2024-01-05 at 08:05"),
        ("4111111111111111", " ".join("4111111111111111")),
        ("1,000,000,000,000,000", " ".join("1000000000000000")),
        ("5'10\"", "5 foot 10"),
        ("3 m and 4 m².", "3 meters and 4 square meters."),
        ("a -> b, ≈ 3, x ≥ 5", "a → b, about 3, x at least 5"),
        ("C#, .NET and CO2", "C sharp, dot net and C O 2"),
    ],
    ids=lambda text: text or "nothing",
)
def test_what_the_package_would_misread_is_put_into_words(written: str, read: str) -> None:
    assert speakable(written) == read


@pytest.mark.parametrize(
    "text",
    [
        "Dr. Smith, e.g., paid 25% on July 4, 1976.",
        "It's 7:30, “well-known” — and/or (so-called) naïve!",
        "He's 1st of 1,250 in the 1990s; 3/4 of 20 km.",
    ],
)
def test_what_it_reads_right_is_left_alone(text: str) -> None:
    assert speakable(text) == text


def test_a_run_without_a_space_is_broken_into_words_none_of_which_is_lost() -> None:
    run = "state-of-the-art/" * 5 + "a" * 50 + "it's"
    assert speakable(run).split() == ["state", "of", "the", "art"] * 5 + ["a" * 24, "a" * 24, "aait's"]


@pytest.mark.parametrize("unit", ["a-", "[", "a.", "1.", "(", "<!--", "<a ", "$1", "a@", "http://a", "'", "- ", "*a"])
def test_no_text_takes_long(unit: str) -> None:
    speakable(unit * (128 * 1024 // len(unit)))  # minutes where a pattern could start anywhere and run to the end

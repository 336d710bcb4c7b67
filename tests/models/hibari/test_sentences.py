"""Where sentences end in a text that is still being written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from models.hibari.sentences import Sentences

SHIPPED = (Path(__file__).parents[2] / "data" / "sentences.txt").read_text(encoding="utf-8")


def cut(*chunks: str) -> list[str]:
    sentences = Sentences()
    return [*(sentence for chunk in chunks for sentence in sentences.push(chunk)), *sentences.close()]


@pytest.mark.parametrize(
    "sentences",
    [
        ["One."],
        ["One.", "Two!", "Three?", "Four…", "Five"],
        ["Really?!", "Yes!!!"],
        ["Wait... what?", "I see...", "Then go."],
        ["Mr. Smith met Dr. Jones at St. Mary's.", "They talked."],
        ["J. K. Rowling wrote it.", "So do I.", "And you?"],
        ["It is 3.14, not 3.", "Version 2.0 is out."],
        ["Bring fruit, e.g. Apples, i.e. the U.S. kind.", "Thanks."],
        ["Come at 5 p.m. on Monday.", "It ends at 7 p.m.", "The door is open."],
        ["See No. 5 and Fig. 3, on Jan. 2.", "I said no.", "He left."],
        ['"Stop!" he said.', '"Why?"', "(Nobody knew.)", "“It is late.”", "Go."],
        ["See www.example.com/a.b?c=1 for more.", "Or not."],
        ["**Note.**", "It is _bold._", "Yes."],
        ["Here are two: 1. Sleep.", "2. Eat.", "(b) Fruit."],
        ["He asked (was it you?) and left.", "It was 5 vs. 3."],
    ],
    ids=lambda sentences: sentences[0],
)
def test_a_text_is_cut_where_its_sentences_end(sentences: list[str]) -> None:
    assert cut(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("A heading\nText below it.", ["A heading", "Text below it."]),
        ("Milk:\n- one\n- two\n1. Three\n", ["Milk:", "- one", "- two", "1. Three"]),
        ("a line that was\nonly wrapped.", ["a line that was\nonly wrapped."]),
        ("a paragraph\n\nand another", ["a paragraph", "and another"]),
        ("It ends.\nthen it goes on.", ["It ends.", "then it goes on."]),
        ("  \n\n  Hello.  \n ", ["Hello."]),
        (" \n\t ", []),
        ("", []),
    ],
    ids=["heading", "list", "wrapped", "paragraphs", "lines", "margins", "white space", "nothing"],
)
def test_lines(text: str, sentences: list[str]) -> None:
    assert cut(text) == sentences


def test_a_sentence_is_there_with_the_first_character_behind_it() -> None:
    sentences = Sentences()
    assert [sentences.push(chunk) for chunk in ("It is", " so.", " ", "  ", "T", "hen")] == [
        [],
        [],
        [],
        [],
        ["It is so."],
        [],
    ]
    assert sentences.close() == ["Then"]


def test_a_text_without_an_end_takes_no_time() -> None:
    assert len(cut("Mr. " * 32_000)) == 1


@pytest.mark.parametrize("seed", range(30))
def test_however_a_text_comes_in_the_sentences_are_the_same_and_no_character_is_lost(seed: int) -> None:
    choose = random.Random(seed)
    pieces = [
        "Mr. ",
        "e.g. ",
        "3.14 ",
        "Yes. ",
        "no! ",
        "\n",
        "\n\n",
        " ",
        "1. ",
        '"Hi." ',
        "U.S. ",
        "... ",
        "it",
        "A",
        "…",
    ]
    texts = [SHIPPED, "".join(choose.choices(pieces, k=200))]
    for text in texts:
        whole = cut(text)
        places = sorted(choose.sample(range(len(text)), min(len(text), choose.choice([1, 5, 60, len(text)]))))
        chunks = [text[start:stop] for start, stop in zip([0, *places], [*places, len(text)], strict=True)]
        assert cut(*chunks) == whole
        assert "".join("".join(whole).split()) == "".join(text.split())

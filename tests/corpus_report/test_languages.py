"""Languages are told by the small words that only one of them has, or not at all."""

import pytest

from minigpt.corpus_report.languages import language_shares

SAYINGS = {
    "English": "It was the best of times, it was the worst of times, and there were those who had not been there. ",
    "French": "Elle est dans une maison avec les enfants pour qui nous avons des fleurs, mais sur leur table. ",
    "German": "Der Mann ist nicht mit dem Hund auf den Berg gegangen, aber auch nicht nach Hause, und das war es. ",
    "Spanish": "Yo fue muy feliz cuando los niños y las niñas estaban sin miedo, pero también como una familia más. ",
    "Russian": "И он не был там, как это уже было, когда она из дома на него бы так только для меня. ",
    "Turkish": "Bir gün çok daha sonra gibi olarak bu kadar ama değil diye onun için ve ne vardı. ",
}


@pytest.mark.parametrize("language", SAYINGS)
def test_a_text_of_one_language_is_mostly_that(language: str) -> None:
    shares = language_shares((SAYINGS[language] * 5).encode())
    assert next(iter(shares)) == language
    assert shares[language] > 0.9


def test_a_mixture_has_both_by_their_words() -> None:
    shares = language_shares((SAYINGS["English"] * 30 + SAYINGS["German"] * 10).encode())
    assert list(shares) == ["English", "German"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["English"] > shares["German"] > 0.1


def test_few_words_and_other_scripts_tell_nothing() -> None:
    assert language_shares(b"the cat and the dog") == {}
    assert language_shares("春眠不觉晓，处处闻啼鸟。".encode() * 100) == {}


def test_a_quotation_is_no_second_language() -> None:
    assert list(language_shares((SAYINGS["English"] * 200 + SAYINGS["French"]).encode())) == ["English"]


def test_a_word_of_several_languages_tells_none() -> None:
    assert language_shares(("que para con " * 50).encode()) == {}
    assert list(language_shares(("que muy con " * 50).encode())) == ["Spanish"]

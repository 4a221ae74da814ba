"""The estimated languages of short and mixed texts."""

import pytest

from minigpt.corpus_report.languages import language_shares

SENTENCES = {
    "en": "It was the best of times, it was the worst of times, and there were those who had not been there. ",
    "fr": "Elle est dans une maison avec les enfants pour qui nous avons des fleurs, mais sur leur table. ",
    "de": "Der Mann ist nicht mit dem Hund auf den Berg gegangen, aber auch nicht nach Hause, und das war es. ",
    "es": "Yo fue muy feliz cuando los niños y las niñas estaban sin miedo, pero también como una familia más. ",
    "ru": "И он не был там, как это уже было, когда она из дома на него бы так только для меня. ",
    "tr": "Bir gün çok daha sonra gibi olarak bu kadar ama değil diye onun için ve ne vardı. ",
    "fi": "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan, ja heillä on järki. ",
    "zh": "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少。",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_text_in_one_language_is_mostly_in_that(language: str) -> None:
    shares = language_shares((SENTENCES[language] * 5).encode())
    assert next(iter(shares)) == language
    assert shares[language] > 0.9


def test_a_mixture_has_the_share_of_each_language() -> None:
    shares = language_shares((SENTENCES["en"] * 30 + SENTENCES["de"] * 10).encode())
    assert list(shares) == ["en", "de"]
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["de"] == pytest.approx(0.25, abs=0.1)


def test_a_short_text_and_one_without_letters_have_no_language() -> None:
    assert language_shares(b"the cat and the dog") == {}
    assert language_shares(b"12 + 3 = 15; " * 100) == {}


def test_a_quotation_is_not_a_second_language() -> None:
    assert list(language_shares((SENTENCES["en"] * 200 + SENTENCES["fr"]).encode())) == ["en"]


def test_a_long_text_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.corpus_report.languages._MOST_BYTES", 16_000)
    text = (SENTENCES["en"] * 2000 + SENTENCES["fr"] * 2000).encode()
    assert language_shares(text) == pytest.approx({"en": 0.5, "fr": 0.5}, abs=0.1)

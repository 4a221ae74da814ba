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
    "ja": "朝起きると、窓の外は雨だった。駅まで歩く間に靴が濡れて、電車の中ではずっと足が冷たかった。",
    "ko": "아침에 일어나 보니 창밖에는 비가 내리고 있었다. 역까지 걸어가는 동안 신발이 다 젖어 버렸다.",
    "th": "เมื่อเช้านี้ฝนตกหนักมาก ฉันเดินไปสถานีรถไฟแล้วรองเท้าเปียกหมดเลย",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_text_in_one_language_is_mostly_in_that(language: str) -> None:
    shares = language_shares((SENTENCES[language] * 5).encode())
    assert next(iter(shares)) == language
    assert shares[language] > 0.9


def test_a_short_text_and_one_without_letters_have_no_language() -> None:
    assert language_shares(b"the cat and the dog") == {}
    assert language_shares(b"12 + 3 = 15; " * 100) == {}


CODE = """\
def area(w, h):
    if w < 0 or h < 0: return None
    return w * h
x = [area(i, j) for i in range(9) for j in range(i)]
y = {k: v + 1 for k, v in zip(x, x[1:]) if v}
z = sorted(y.items(), key=lambda p: (-p[1], p[0]))[:3]
int f(int *p, int n) { int s = 0; for (int i = 0; i < n; i++) s += p[i]; return s; }
"""


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        (SENTENCES["en"] * 30 + SENTENCES["de"] * 10, {"en": 0.75, "de": 0.25}),
        (
            SENTENCES["ja"] * 40 + "\n" + SENTENCES["en"] * 40 + "\n" + SENTENCES["zh"] * 60,
            {"ja": 0.2, "en": 0.5, "zh": 0.3},
        ),
        (CODE * 4, {}),
        (SENTENCES["ja"] * 30 + CODE * 6, {"ja": 0.45}),
        (SENTENCES["en"] * 200 + SENTENCES["fr"], {"en": 1.0}),
    ],
    ids=["two languages", "three languages", "code", "a language and code", "a quotation"],
)
def test_a_mixture_has_the_share_of_each_language(text: str, shares: dict[str, float]) -> None:
    assert language_shares(text.encode()) == pytest.approx(shares, abs=0.15)


def test_a_long_text_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.corpus_report.languages._MOST_BYTES", 16_000)
    text = (SENTENCES["en"] * 2000 + SENTENCES["fr"] * 2000).encode()
    assert language_shares(text) == pytest.approx({"en": 0.5, "fr": 0.5}, abs=0.1)

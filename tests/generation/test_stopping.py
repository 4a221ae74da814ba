"""Stopping: a stream of text ends at the same place however it is divided into pieces."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.generation.stopping import StopFilter, Until

UNTILS: list[Until | None] = [None, "line", "paragraph", "sentence"]


def shown(
    pieces: list[str], stops: tuple[str, ...] = (), until: Until | None = None, before: str = ""
) -> tuple[str, bool]:
    """The text that is shown of these pieces, and whether it ended within them."""
    stop_filter, text = StopFilter(stops, until, before=before), ""
    for piece in pieces:
        more, found = stop_filter.feed(piece)
        text += more
        if found:
            return text, True
    return text + stop_filter.flush(), False


def cut(text: str, at: list[int]) -> list[str]:
    """The text in pieces that end at these places."""
    places = [0, *sorted(place % (len(text) + 1) for place in at), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


texts = st.lists(
    st.sampled_from(
        [*'abJ.!…\u0964。！"”)」 \n\t', "Mr", "e.g", ' "', "  ", "\n\n", "c d"],
    )
).map("".join)
stop_strings = st.lists(st.text("ab.\n ", min_size=1, max_size=3), max_size=3).map(tuple)


@settings(deadline=None, max_examples=150)
@given(
    text=texts, stops=stop_strings, until=st.sampled_from(UNTILS), at=st.lists(st.integers(0, 99), max_size=8),
    before=texts,
)  # fmt: skip
def test_the_division_into_pieces_changes_nothing(
    text: str, stops: tuple[str, ...], until: Until | None, at: list[int], before: str
) -> None:
    expected = shown([text], stops, until, before)
    assert shown(cut(text, at), stops, until, before) == shown(list(text), stops, until, before) == expected


@settings(deadline=None)
@given(
    pieces=st.lists(st.text("ab\n", max_size=4)),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_a_stop_string_is_found_across_pieces(pieces: list[str], stops: tuple[str, ...]) -> None:
    whole = "".join(pieces)
    ends = [(at + len(stop), at) for stop in stops if (at := whole.find(stop)) >= 0]
    assert shown(pieces, stops) == ((whole[: min(ends)[1]], True) if ends else (whole, False))
    assert not any(stop in shown(pieces, stops)[0] for stop in stops)


@settings(deadline=None, max_examples=200)
@given(pieces=st.lists(st.text("a \n", max_size=4)), n_free=st.integers(0, 4))
def test_a_turn_ends_before_the_first_line_that_does_not_begin_with_a_space(pieces: list[str], n_free: int) -> None:
    """Before `n_free` pieces it may not end: what they show of the next turn stays, and nothing more is shown."""
    stop_filter, whole, text, found = StopFilter((), one_turn=True), "", "", False
    for number, piece in enumerate(pieces):
        more, found = stop_filter.feed(piece, may_stop=number >= n_free)
        whole, text = whole + piece, text + more
        end = re.search(r"\n[^ ]", whole)
        assert found == (end is not None and number >= n_free)
        if found:
            break
    free = "".join(pieces[:n_free])
    if found:
        assert text == max(whole[: end.start()], free, key=len)
    else:
        assert text + stop_filter.flush() == whole


@settings(deadline=None, max_examples=50)
@given(pieces=st.lists(texts), stops=stop_strings)
def test_only_a_possible_beginning_of_a_stop_string_is_held_back(pieces: list[str], stops: tuple[str, ...]) -> None:
    stop_filter, fed, out = StopFilter(stops), "", ""
    for piece in pieces:
        text, found = stop_filter.feed(piece)
        fed, out = fed + piece, out + text
        if found:
            return
        pending = fed[len(out) :]
        assert fed.startswith(out)
        assert pending == "" or any(len(pending) < len(stop) and stop.startswith(pending) for stop in stops)
        assert not any(fed.endswith(stop[:size]) for stop in stops for size in range(len(pending) + 1, len(stop)))


@pytest.mark.parametrize(
    ("until", "text", "expected"),
    [
        ("line", "one. two\nthree", "one. two"),
        ("line", "\n \n  one\n\n", "\n \n  one"),
        ("line", "one", None),
        ("line", "\n\n\n", None),
        ("paragraph", "one\ntwo\n\nthree", "one\ntwo"),
        ("paragraph", "\n\none \t\n  \n two", "\n\none"),
        ("paragraph", "one\n two\n", None),
        ("paragraph", "one \n\n\n\ntwo", "one"),
        ("sentence", "It is. So", "It is."),
        ("sentence", "It is.", None),
        ("sentence", "  \n It is!\n", "  \n It is!"),
        ("sentence", "Is it?! Yes.", "Is it?!"),
        ("sentence", "Well… it is", "Well…"),
        ("sentence", "Well... it is", "Well..."),
        ("sentence", "He has 3.5 of them. So", "He has 3.5 of them."),
        ("sentence", "see example.com now. So", "see example.com now."),
        ("sentence", 'He said "Go." Then', 'He said "Go."'),
        ("sentence", "He said “Go!” Then", "He said “Go!”"),
        ("sentence", "(So it is.) Then", "(So it is.)"),
        ("sentence", "Mr. Smith met Mrs. Smith. So", "Mr. Smith met Mrs. Smith."),
        ("sentence", "I met Dr. J. R. R. Tolkien at St. Paul's. So", "I met Dr. J. R. R. Tolkien at St. Paul's."),
        ("sentence", "Fruit, e.g. apples, etc. are good. So", "Fruit, e.g. apples, etc. are good."),
        ("sentence", "It was his grandfather's, Mr. \n Smith's! So", "It was his grandfather's, Mr. \n Smith's!"),
        ("sentence", "The vest. So", "The vest."),
        ("sentence", "It was USSR. So", "It was USSR."),
        ("sentence", ". Then she left. So", "."),
        ("sentence", "他走了。她来了。", "他走了。"),
        ("sentence", "他走了。", None),
        ("sentence", "「行こう！」と言った。", "「行こう！」"),
        ("sentence", "(本当？！）\n はい", "(本当？！）"),
        ("sentence", "本当？！はい", "本当？！"),
        ("sentence", "वह गया\u0964 फिर", "वह गया\u0964"),
        ("sentence", "Kya gaya\u061f Haan\u06d4 Phir", "Kya gaya\u061f"),  # Urdu
        ("sentence", "Haan\u06d4 Phir", "Haan\u06d4"),
    ],
)
def test_text_ends_after_its_first_line_paragraph_or_sentence(until: Until, text: str, expected: str | None) -> None:
    assert shown(list(text), (), until) == ((text, False) if expected is None else (expected, True))


@pytest.mark.parametrize(
    ("before", "text", "expected"),
    [
        ("It was over", ". Then she left. So", "."),
        ("It was over", '." Then she left. So', '."'),
        ("It was over.", " Then she left. So", " Then she left."),
        ("It was over.", ".. Then she left. So", ".. Then she left."),
        ('She said "Go.', '" Then she left. So', '" Then she left.'),
        ("I met Mr", ". Smith there. So", ". Smith there."),
        ("in the US", "A. Then she left. So", "A."),
        ("他走了", "。她来了", "。"),
        ("One.\n\n", "Two. Three", "Two."),
    ],
)
def test_a_sentence_may_begin_in_the_prompt(before: str, text: str, expected: str) -> None:
    assert shown(list(text), (), "sentence", before) == shown([text], (), "sentence", before) == (expected, True)


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (("two",), "one two. Three", "one "),
        ((" Th",), "one two. Three", "one two."),
        (("two. Three",), "one two. Three", "one two."),  # the sentence is complete before the stop string is
        (("zzz",), "one two. Three", "one two."),
        ((".",), "one two. Three", "one two"),
    ],
)
def test_of_a_stop_string_and_a_sentence_the_first_to_be_complete_ends_the_text(
    stops: tuple[str, ...], text: str, expected: str
) -> None:
    assert shown([text], stops, "sentence") == shown(list(text), stops, "sentence") == (expected, True)


@pytest.mark.parametrize("stops", [("abc", "b"), ("b", "abc")], ids=str)
def test_of_several_stop_strings_the_first_to_be_complete_ends_the_text(stops: tuple[str, ...]) -> None:
    assert shown(["xabc"], stops) == shown(list("xabc"), stops) == ("xa", True)
    assert shown(["xabc"], ("abc", "bc")) == shown(list("xabc"), ("abc", "bc")) == ("x", True)


@pytest.mark.parametrize("until", UNTILS)
def test_text_that_may_not_stop_is_shown_completely(until: Until | None) -> None:
    stop_filter = StopFilter((".", "ab"), until)
    for piece in ("One. Two.", "\n\nab", "a"):
        assert stop_filter.feed(piece, may_stop=False) == (piece, False)
    assert stop_filter.feed("b") == ("b", False)  # the stop string began in text that may not stop
    assert stop_filter.feed("cab") == ("c", True)


@pytest.mark.parametrize("until", UNTILS[1:])
@pytest.mark.parametrize("run", ["\n" + " " * 100_000, "." * 100_000, "a. " + '."' * 50_000, "J. " * 30_000], ids=len)
def test_a_long_run_of_the_characters_of_an_end_is_searched_in_linear_time(until: Until, run: str) -> None:
    """A quadratic search would take minutes."""
    assert shown(["x", run, "y.\n\nz"], (), until)[1]


def test_ends_count_only_after_the_text_that_may_not_stop() -> None:
    stop_filter = StopFilter((), "sentence")
    assert stop_filter.feed("One. Two", may_stop=False) == ("One. Two", False)
    assert stop_filter.feed(" and a half. Three. ") == (" and a half.", True)
    stop_filter = StopFilter((), "paragraph")
    assert stop_filter.feed("One.\n", may_stop=False) == ("One.\n", False)
    assert stop_filter.feed("\nTwo.") == ("\nTwo.", False)
    assert stop_filter.feed(" \n") == ("", False)
    assert stop_filter.feed("\nThree") == ("", True)

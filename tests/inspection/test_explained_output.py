"""Generated pieces shown with the probabilities of their tokens."""

import math
import re

from consoles import color_console, plain_console, printed

from minigpt.foreign_tokenizers.ids_only import IdsOnly
from minigpt.generation.decoding import GeneratedToken
from minigpt.generation.streaming import Piece
from minigpt.inspection.explained_output import ColoredOutput
from minigpt.tokenizer.tokenizer import Tokenizer


def test_text_held_back_for_a_stop_string_keeps_its_probabilities_and_text_cut_off_is_not_shown() -> None:
    tokenizer = Tokenizer.named("bytes")
    out = plain_console()
    output = ColoredOutput(out, tokenizer)
    output.begin("p")
    pieces = [("", ord("a"), -1), ("", ord("b"), -2), ("abc", ord("c"), -3), ("", ord("S"), -4), ("", ord("T"), -5)]
    for text, id, bits in pieces:
        output.add(Piece(0, text, GeneratedToken(id, bits * math.log(2))))
    output.add(Piece(0, "", GeneratedToken(tokenizer.end_of_text, -6.0), "end_of_text"))
    output.end()
    assert printed(out).splitlines()[:2] == ["pabc", " 123"]


def test_a_token_held_back_in_part_is_shown_in_two_parts_of_one_color() -> None:
    tokenizer = Tokenizer.named("gpt2")
    (the,), (x,) = tokenizer.encode(" the"), tokenizer.encode("x")
    out = color_console()
    output = ColoredOutput(out, tokenizer)
    output.begin("p")
    output.add(Piece(0, " t", GeneratedToken(the, -1.0)))
    assert printed(out, styles=False) == "p t"
    output.add(Piece(0, "hex", GeneratedToken(x, -6.0)))
    output.add(Piece(0, " t", GeneratedToken(the, -3.0), "stop"))
    backgrounds = re.findall(r"48;2;([\d;]+)m([^\x1b]+)", printed(out))
    assert [text for _, text in backgrounds] == [" t", "he", "x", " t"]
    assert backgrounds[0][0] == backgrounds[1][0] != backgrounds[2][0]


def test_the_end_of_the_prompt_that_a_token_spells_again_is_not_shown_twice() -> None:
    tokenizer = Tokenizer.named("gpt2")
    (the,), (x,) = tokenizer.encode(" the"), tokenizer.encode("x")
    out = plain_console()
    output = ColoredOutput(out, tokenizer)
    output.begin("p ")
    output.add(Piece(0, "the", GeneratedToken(the, -math.log(2)), healed=" "))
    output.add(Piece(0, "x", GeneratedToken(x, -2 * math.log(2)), "length"))
    output.end()
    assert printed(out).splitlines()[:2] == ["p thex", "  1  2"]


def test_every_character_of_the_first_token_is_colored_though_its_space_is_dropped_at_the_start_of_a_text() -> None:
    out = color_console()
    output = ColoredOutput(out, Tokenizer(IdsOnly(size=40, end_id=7)))
    output.begin("3")
    output.add(Piece(0, " 12", GeneratedToken(12, -1.0)))
    output.add(Piece(0, " 5", GeneratedToken(5, -3.0), "length"))
    assert re.findall(r"48;2;[\d;]+m([^\x1b]+)", printed(out)) == [" 12", " 5"]

"""The table of tokens."""

import re

from consoles import color_console, plain_console, printed
from rich.cells import cell_len

from minigpt.inspection.token_table import TokenRow, print_table


def test_right_to_left_text_does_not_reorder_the_rest_of_its_row() -> None:
    out = plain_console(100)
    print_table(out, [TokenRow(1, "שלום", -1.0, [("مرحبا", -2.0), ("a", -3.0)])])
    row = printed(out).splitlines()[1]
    assert re.fullmatch(r" +1  \u2068שלום +\u2069 +37% +1\.44 +\u2068مرحبا\u2069 14%  a 5\.0%", row)


def test_in_a_narrow_terminal_rows_are_cut_rather_than_wrapped() -> None:
    out = color_console(52)
    print_table(out, [TokenRow(1, "a", -1.0, [("b", -2.0), ("c", -3.0)], 1.0, 3)])
    lines = printed(out, styles=False).splitlines()
    assert len(lines) == 2
    assert all(line.endswith("…") for line in lines)
    assert [cell_len(line) for line in lines] == [52, 52]

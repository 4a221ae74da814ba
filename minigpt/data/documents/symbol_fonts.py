"""The characters of the fonts Symbol and Wingdings, whose codes are those of other letters."""

# From 0x20 and from 0xA0. Source: Unicode's SYMBOL.TXT.
_SYMBOL = dict(
    enumerate(
        " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼",
        0x20,
    )
)
_SYMBOL |= enumerate(
    "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊〈®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪\ufffd〉∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭",
    0xA0,
)
# Those that Word writes when it corrects what is typed, such as --> and :), those of bullets, and those of forms.
_WINGDINGS = {
    0x4A: "☺", 0x4B: "😐", 0x4C: "☹", 0x6C: "●", 0x6E: "■", 0x6F: "□", 0xA7: "▪", 0xA8: "◻", 0xD8: "➢", 0xDF: "←",
    0xE0: "→", 0xE7: "⬅", 0xE8: "➔", 0xF3: "⇔", 0xFB: "✗", 0xFC: "✓", 0xFD: "☒", 0xFE: "☑",
}  # fmt: skip
_FONTS = {"symbol": _SYMBOL, "wingdings": _WINGDINGS}


def symbol(font: str, code: int) -> str:
    """The character with a code in a font, which may be in Unicode's private area; U+FFFD if it is not known."""
    if 0xF000 <= code <= 0xF0FF or code < 0x100:
        return _FONTS.get(font.casefold(), {}).get(code & 0xFF, "\ufffd")
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"

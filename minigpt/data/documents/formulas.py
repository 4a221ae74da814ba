"""The signs for what is only drawn in a formula, such as the line of a fraction."""

# What is written before a part of a formula, and in MathML before each part of an element. Of the parts named here,
# those of several characters get parentheses.
WORD_SIGNS = {"m:num": "", "m:den": "/", "m:sup": "^", "m:sub": "_", "m:lim": "_"}
MATHML_SIGNS = {
    "mfrac": ("", "/"),
    "msup": ("", "^"),
    "msub": ("", "_"),
    "msubsup": ("", "_", "^"),
    "munder": ("", "_"),
    "mover": ("", "^"),
    "munderover": ("", "_", "^"),
}


def is_compound(part: str) -> bool:
    """Whether a part of a formula needs parentheses after a sign."""
    return len(part) > 1 and not part.isalnum()

"""The text of subtitles: what is said, without numbers and times."""

import re

_TAGS = re.compile(r"</?[a-zA-Z][^<>\n]{0,100}>|\{\\[^{}\n]{0,100}\}")


def srt_text(text: str) -> str:
    """The subtitles, a line each; the lines of one subtitle are joined unless two speakers have a line each."""
    import srt

    lines = []
    for subtitle in srt.parse(text.replace("\r\n", "\n")):
        content = _TAGS.sub("", subtitle.content)
        spoken = [line.strip() for line in content.split("\n") if line.strip()]
        starts = [0, *(i for i, line in enumerate(spoken) if i and line.startswith(("-", "–", "—")))]
        lines += [" ".join(spoken[a:b]) for a, b in zip(starts, [*starts[1:], len(spoken)], strict=True)]
    return "\n".join(line for line in lines if line)

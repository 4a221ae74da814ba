"""UTF-8 streaming: tokens that arrive one by one become text as soon as their characters are complete."""

import codecs
from collections.abc import Callable


class StreamDecoder:
    """Decodes a stream of tokens into whole characters; the pieces join to the decoded text of all tokens."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """`token_bytes` gives the bytes of a token id, as `Tokenizer.token_bytes` does."""
        self._token_bytes = token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The characters that this token completes, often none."""
        return self._utf8.decode(self._token_bytes(token))

    def flush(self) -> str:
        """The rest at the end of the stream: U+FFFD if the last character is incomplete."""
        return self._utf8.decode(b"", final=True)

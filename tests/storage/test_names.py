"""The names of texts and models, of runs that were made on this system or on another one."""

import pytest

from minigpt.storage.names import plain_source


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/home/jane/book.txt", "book.txt"),
        ("/home/jane/letters/", "letters"),
        (r"C:\Users\jane\book.txt", "book.txt"),
        ("C:\\Users\\jane\\letters\\", "letters"),
        (r"\\server\jane\book.txt", "book.txt"),
        (r"..\models\gpt2", "gpt2"),
        ("openai-community/gpt2", "gpt2"),
        ("-", "standard input"),
        ("/", "/"),
    ],
)
def test_a_source_is_named_without_its_folders(source: str, name: str) -> None:
    assert plain_source(source) == name

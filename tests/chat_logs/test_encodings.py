"""Chat logs in another encoding."""

import gzip
import json
from pathlib import Path

import pytest

from minigpt.data.sources import scan


@pytest.mark.parametrize("zipped", [False, True])
def test_a_chat_log_and_a_folder_in_another_encoding_are_read(tmp_path: Path, zipped: bool) -> None:
    row = json.dumps({"messages": [{"role": "user", "content": "Grüße"}]}, ensure_ascii=False) + "\n"
    content = (row * 3).encode("utf-16")
    (tmp_path / f"a.jsonl{'.gz' * zipped}").write_bytes(gzip.compress(content) if zipped else content)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0\0")
    found = scan(tmp_path, encoding="utf-16")
    assert (found.n_conversations, len(found.skipped)) == (3, 1)

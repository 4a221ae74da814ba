"""Sources of text: finding files, decoding them, and splitting them into documents."""

import codecs
import gzip
import io
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.data import find_files, sources
from minigpt.data.sources import BLOCK_SIZE, scan
from minigpt.errors import DataError

END = "<|endoftext|>"


def documents(*paths, **options):
    """The documents of these sources."""
    found, texts = [""], scan(paths, **options)
    for piece, ends in texts.pieces():
        found[-1] += piece
        if ends:
            found.append("")
    assert found.pop() == ""
    assert texts.n_documents == len(found)
    assert texts.document_lengths == tuple(map(len, found))
    assert texts.text_bytes == sum(len(text.encode()) for text in found)
    return found


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def standard_input(monkeypatch):
    def give(content):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    return give


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


TEXT = st.lists(st.sampled_from([END, "<|", "endoftext|>", "<|endoftext|", "a", "é", "中", "😀", " ", "\n", "\r\n"]))


@given(TEXT.map("".join), st.integers(1, 20), st.booleans())
@settings(deadline=None, max_examples=100)
def test_documents_do_not_depend_on_where_the_blocks_of_a_file_end(tmp_path_factory, text, block, zipped):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(gzip.compress(("x" + text).encode()) if zipped else ("x" + text).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_SIZE", block)
        assert documents(path) == [part for part in ("x" + text).split(END) if part.strip()]


def test_text_is_kept_byte_for_byte_including_line_ends(write):
    assert documents(write("a.txt", " a\r\nb\rc\n\n")) == [" a\r\nb\rc\n\n"]


def test_a_byte_order_mark_is_skipped(write):
    assert documents(write("a.txt", codecs.BOM_UTF8 + b"hello")) == ["hello"]
    assert documents(write("a.jsonl", codecs.BOM_UTF8 + lines({"text": "hello"}).encode())) == ["hello"]


def test_a_folder_gives_its_text_files_in_sorted_order_without_hidden_and_binary_ones(write, tmp_path):
    for name in ("b/2.md", "b/1.txt", "a.txt", "c.py", ".hidden", ".git/config", "b/.secret/x.txt", "d/3.txt"):
        write(name, name)
    write("b/model.bin", b"\x00\x01")
    write("empty.txt", b"")
    write("z.jsonl.gz", gzip.compress(lines({"text": "zipped"}).encode()))
    assert documents(tmp_path) == ["a.txt", "c.py", "zipped", "b/1.txt", "b/2.md", "d/3.txt"]
    assert scan([tmp_path]).skipped == (str(tmp_path / "b" / "model.bin"),)


@pytest.mark.parametrize(
    "names",
    [
        ("training.json", "config.json", "README.md"),
        ("adapter_config.json", "README.md"),
        ("config.json", "model-00001-of-00002.safetensors"),
        ("config.json", "pytorch_model.bin"),
        ("config.json", "model.onnx"),
        ("config.json", "model.bin", "vocabulary.json"),
    ],
)
def test_models_in_a_folder_are_skipped_with_all_that_is_in_them(write, tmp_path, names):
    write("a.txt", "a")
    write("text/b.txt", "b")
    write("text/training.json", "")  # not a run without a config.json
    alone = documents(tmp_path)
    assert alone == ["a", "b"]
    for name in (*names, "teacher/README.md"):
        write(f"checkpoints/one/{name}", "text of a model")
    assert documents(tmp_path) == alone
    assert f"skipped a folder with a model: {tmp_path / 'checkpoints' / 'one'}" in scan([tmp_path]).notes
    assert scan([tmp_path]).skipped == ()
    assert "text of a model" in documents(tmp_path / "checkpoints" / "one")  # the user names it, so it is the text


def test_a_folder_with_models_only_has_no_text(write, tmp_path):
    for number in range(4):
        write(f"checkpoints/{number}/config.json", "{}")
        write(f"checkpoints/{number}/training.json", "{}")
    text = write("a.txt", "a")
    with pytest.raises(DataError, match=r"checkpoints has no text file outside its models \(\S+0, \S+1, \S+2 …\)"):
        scan([tmp_path / "checkpoints"])
    assert documents(text, tmp_path / "checkpoints") == documents(str(tmp_path / "*")) == ["a"]
    (note,) = scan([tmp_path]).notes
    assert note.startswith("skipped 4 folders with models: ")


def test_globs_are_expanded_and_a_file_named_twice_is_read_once(write, tmp_path):
    for name in ("a.txt", "b.txt", "sub/deep/c.txt", "d.md", "e[1].txt"):
        write(name, name)
    assert documents(str(tmp_path / "*.txt")) == ["a.txt", "b.txt", "e[1].txt"]
    assert documents(str(tmp_path / "**/c.txt"), tmp_path / "d.md", tmp_path / "sub") == ["sub/deep/c.txt", "d.md"]
    assert documents(str(tmp_path / "e[1].txt")) == ["e[1].txt"]


@pytest.mark.parametrize("pattern", ["**/*.txt", "*/*/*.txt", "checkpoints/*", "**"])
def test_a_glob_skips_models_unless_it_names_them(write, tmp_path, monkeypatch, pattern):
    monkeypatch.chdir(tmp_path)
    write("checkpoints/notes/a.txt", "a")
    for name in ("config.json", "training.json", "merges.txt", "teacher/config.json", "teacher/model.safetensors"):
        write(f"checkpoints/run/{name}", "{}")
    write("checkpoints/run/teacher/merges.txt", "{}")
    assert documents(pattern) == ["a"]
    assert scan([pattern]).notes == (f"skipped a folder with a model: {Path('checkpoints/run')}",)
    assert documents("checkpoints/run/*.txt") == documents("checkpoints/run/teacher/me*") == ["{}"]
    assert scan(["checkpoints/run/*.txt"]).notes == ()
    with pytest.raises(DataError, match=r"checkpoints/r\* has no text file outside its models"):
        scan(["checkpoints/r*"])


def test_a_link_to_nothing_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("link", "folder/link", tmp_path / "folder/link"):
        Path(name).unlink(missing_ok=True)
        Path(name).symlink_to("nothing")
        with pytest.raises(DataError, match="link does not exist; give a text file"):
            scan([name])


def test_a_glob_may_match_folders_without_text(write, tmp_path):
    write("a.txt", "a")
    (tmp_path / "b.txt").mkdir()
    write("c.txt/image", b"\0\1")
    write("d.txt/unread.zip", b"PK\3\4")
    assert documents(str(tmp_path / "*.txt")) == ["a"]
    with pytest.raises(DataError, match=r"unread.zip is an archive"):
        scan([str(tmp_path / "d*")])
    with pytest.raises(DataError, match=r"c\* has no text file; give a folder with"):
        scan([str(tmp_path / "c*")])


def test_standard_input_can_be_read_twice_and_leaves_no_file(standard_input, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    standard_input("first<|endoftext|>zweïter".encode())
    found = scan(["-"])
    assert list(found.pieces()) == list(found.pieces()) != []
    assert found.files[0].name == "standard input"
    assert len(list(tmp_path.iterdir())) == 1
    del found
    assert list(tmp_path.iterdir()) == []
    standard_input("Häuser".encode())
    assert documents("-", encoding="latin-1") == ["Häuser"]  # in the encoding that it has


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_without_a_writer_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"/pipe is a pipe that no program writes to; start that program first, or"):
        scan([tmp_path / "pipe"])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_twice_and_its_writer_may_open_it_later_and_pause(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        time.sleep(0.05)
        with pipe.open("wb", buffering=0) as file:
            for text in (b"one ", b"two"):
                time.sleep(0.05)
                file.write(text)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert documents(pipe) == ["one two"]
    writer.join()


def test_json_lines_give_one_document_per_line_under_any_key(write):
    path = write(
        "a.jsonl",
        lines({"text": "one\ntwo", "body": "x"}, {"text": "", "body": "y"})
        + "\n\r\n"
        + lines({"text": f"three{END}four", "body": "z"}),
    )
    assert documents(path) == ["one\ntwo", "three", "four"]
    assert documents(path, text_key="body") == ["x", "y", "z"]


def test_the_content_hash_depends_on_the_documents_and_not_on_their_files(write):
    one = scan([write("a.txt", f"one{END}two")]).content_hash
    assert (
        scan([write("b.jsonl.gz", gzip.compress(lines({"text": "one"}, {"text": "two"}).encode()))]).content_hash == one
    )
    assert scan([write("one.txt", "one"), write("two.txt", "two")]).content_hash == one
    for other in ("onetwo", f"on{END}etwo", f"two{END}one"):
        assert scan([write("c.txt", other)]).content_hash != one


@given(
    st.integers(0, 60),
    st.sampled_from([b"\xff", b"\xc3(", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xed\xa0\x80"]),
    st.integers(1, 9),
    st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_a_byte_that_is_not_utf8_is_named_with_its_offset(tmp_path_factory, before, wrong, block, zipped):
    start = ("é中😀a" * 20).encode()[:before].decode(errors="ignore").encode()
    path = tmp_path_factory.mktemp("text") / "wrong.txt"
    path.write_bytes(gzip.compress(start + wrong + b"(") if zipped else start + wrong + b"(")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_SIZE", block)
        with pytest.raises(DataError, match=rf"wrong\.txt is not UTF-8: byte {len(start)} is 0x{wrong[0]:02x};"):
            scan([path])
        assert documents(path, encoding_errors="replace") == [(start + wrong + b"(").decode(errors="replace")]


def test_the_offset_counts_lines_and_byte_order_marks_too(write):
    with pytest.raises(DataError, match="byte 4 is 0xff"):
        scan([write("a.txt", codecs.BOM_UTF8 + b"a\xff")])
    first = lines({"text": "é"})
    with pytest.raises(DataError, match=f"byte {len(first) + 10} is 0xff; .*--encoding"):
        scan([write("a.jsonl", first.encode() + b'{"text": "\xff"}\n')])
    assert documents(write("b.jsonl", b'{"text": "\xff"}\n'), encoding_errors="replace") == ["\ufffd"]


JSON_FAULTS = [
    (
        '{"text": "a", "id": ' + "9" * 5000 + "}",
        r"line 1 is not JSON \(it has a number of more than 4,300 digits\); each",
    ),
    ('{"text": "a"}\n{"text": "b"\n', r"a\.jsonl, line 2 is not JSON \(Expecting .*column 13"),
    ('{"body": "a", "id": 3}\n', r"line 1 has no key 'text'; its keys: 'body', 'id'"),
    ("{}\n", r"line 1 has no key 'text'; its keys: none"),
    ('{"text": 3}\n', r"line 1: the value of 'text' must be a string\b.*, not 3"),
    ('{"text": null}\n', r"line 1: .* not null"),
    ('{"text": "a\\ud83dz"}\n', r"line 1: \\ud83d is half of a surrogate pair; .*--encoding-errors replace"),
]


@pytest.mark.parametrize(("content", "message"), JSON_FAULTS)
def test_a_faulty_line_is_named_with_its_number(write, content, message):
    with pytest.raises(DataError, match=message):
        scan([write("a.jsonl", content)])


def test_a_missing_source_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"no\.txt does not exist; give a text file"):
        scan([tmp_path / "no.txt"])
    with pytest.raises(DataError, match=r"\*\.txt matches no file"):
        scan([str(tmp_path / "*.txt")])
    with pytest.raises(DataError, match="does not exist"):
        scan(["Once upon a time. " * 100])


def test_a_source_without_text_is_reported(write, tmp_path, standard_input):
    with pytest.raises(DataError, match=r"empty\.txt contains no text"):
        scan([write("empty.txt", b"")])
    with pytest.raises(DataError, match=r"the 2 files contain no text"):
        scan([write("empty.txt", b""), write("blank.txt", f" \n{END}\n\t")])
    with pytest.raises(DataError, match=r"empty\.jsonl contains no text"):
        scan([write("empty.jsonl", b"\n")])
    with pytest.raises(DataError, match=r"zeros\.bin is not text: it contains zero bytes"):
        scan([write("zeros.bin", b"abc\0def")])
    write("sub/image.png", b"\x89PNG\0")
    with pytest.raises(DataError, match=r"sub has no text file among its 1"):
        scan([tmp_path / "sub"])
    standard_input(b"")
    with pytest.raises(DataError, match="standard input contains no text"):
        scan(["-"])


def test_a_truncated_or_damaged_gzip_file_is_reported(write):
    whole = gzip.compress(os.urandom(3000).hex().encode())
    with pytest.raises(DataError, match=r"a\.txt\.gz is truncated"):
        scan([write("a.txt.gz", whole[:-500])])
    with pytest.raises(DataError, match=r"a\.txt\.gz is damaged"):
        scan([write("a.txt.gz", whole[:100] + bytes(100) + whole[200:])])


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_read_permission_is_reported(write):
    path = write("a.txt", "text")
    path.chmod(0)
    with pytest.raises(DataError, match=r"a\.txt cannot be read \(permission denied\)"):
        scan([path])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_glob_skips_what_is_no_regular_file(write, tmp_path):
    path = write("sub/a.txt", "text")
    os.mkfifo(tmp_path / "sub" / "pipe")
    (tmp_path / "sub" / "zero").symlink_to("/dev/zero")
    found = scan([str(tmp_path / "**" / "*")])  # matches the folder, too
    assert [file.path for file in found.files] == [path]
    assert {str(tmp_path / "sub" / name) for name in ("pipe", "zero")} <= set(found.skipped)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no /dev/zero")
def test_a_device_is_refused():
    with pytest.raises(DataError, match="/dev/zero is a device, not a text; give a text file"):
        scan(["/dev/zero"])


def test_a_stream_without_end_is_refused(standard_input, monkeypatch):
    monkeypatch.setattr(find_files, "_MAX_STREAM", 3 * BLOCK_SIZE)
    standard_input(b"a" * 3 * BLOCK_SIZE)
    assert scan(["-"]).text_bytes == 3 * BLOCK_SIZE
    standard_input(b"a" * (3 * BLOCK_SIZE + 1))
    with pytest.raises(
        DataError, match="standard input did not end after 3,145,728 bytes; write a longer text to a file"
    ):
        scan(["-"])
    standard_input(bytes(100))
    with pytest.raises(DataError, match="standard input is not text: it contains zero bytes"):
        scan(["-"])


def test_closed_standard_input_is_reported(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(DataError, match=r"^standard input is closed; give a text file or pipe a text in$"):
        scan("-")


def test_without_a_folder_for_temporary_files_standard_input_is_an_error_of_one_sentence(monkeypatch):
    def find_none():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"text")))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", find_none)
    with pytest.raises(DataError) as caught:
        scan("-")
    assert str(caught.value) == (
        "standard input cannot be copied to a temporary folder (no usable temporary directory found in ['/tmp']); set "
        "TMPDIR to a folder with enough space"
    )


def test_standard_input_that_cannot_be_read_is_not_called_a_full_disk(monkeypatch):
    def read(size):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=SimpleNamespace(read=read)))
    with pytest.raises(DataError, match=r"^standard input cannot be read \(input/output error\)$"):
        scan("-")

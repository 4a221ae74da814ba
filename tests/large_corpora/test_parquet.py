"""Tables in Parquet's format."""

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from minigpt import optional_packages
from minigpt.data.sources import scan
from minigpt.errors import DataError, MissingPackageError

ROWS = [{"text": f"document {number} " * 3, "id": number} for number in range(700)]


TEXTS = [row["text"] for row in ROWS]


def parquet_file(path: Path, columns: dict[str, list[Any]], **options: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, **options)
    return path


def documents(*paths: Path, **options: str) -> list[str]:
    text = "".join(piece + "\0" * ends for piece, ends in scan(paths, **options).pieces())
    return text.split("\0")[:-1]


def json_lines(rows: list[dict[str, Any]] = ROWS) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"row_group_size": 100}, {"compression": "gzip"}])
def test_the_rows_of_a_parquet_file_are_documents(tmp_path: Path, options: dict[str, Any]) -> None:
    path = parquet_file(tmp_path / "web.parquet", {"id": list(range(700)), "text": TEXTS}, **options)
    assert documents(path) == TEXTS
    (tmp_path / "web.jsonl").write_bytes(json_lines())
    assert scan([path]).content_hash == scan([tmp_path / "web.jsonl"]).content_hash
    assert len(documents(tmp_path)) == 2 * 700  # a folder has both


@pytest.mark.parametrize("key", ["text", "text.en"])
def test_a_name_of_a_column_may_contain_a_dot(tmp_path: Path, key: str) -> None:
    columns = {"text.en": ["one", "two"], "text": ["eins", "zwei"], "text.en.old": ["a", "b"]}
    path = parquet_file(tmp_path / "web.parquet", columns)
    assert documents(path, text_key=key) == columns[key]
    messages = [[{"role": "user", "content": "Hello"}]]
    path = parquet_file(tmp_path / "chat.parquet", {"chat.log": messages})
    assert documents(path, text_key="chat.log") == ["User: Hello\n"]


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "dictionary"])
def test_texts_may_have_every_type_that_holds_them(tmp_path: Path, kind: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    types = {"string": pyarrow.string(), "large_string": pyarrow.large_string(), "binary": pyarrow.binary()}
    column = pyarrow.array(["ä", "b", "ä"]).cast(types.get(kind, pyarrow.dictionary(pyarrow.int32(), pyarrow.string())))
    assert documents(parquet_file(tmp_path / "web.parquet", {"text": column})) == ["ä", "b", "ä"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"content": ["a"], "id": [1]}, r"no column 'text'; its columns of text: 'content'; name the .* --text-key"),
        ({"id": [1]}, r"no column 'text'; its columns: 'id'; name the column"),
        (
            {"text": [1], "content": ["a"]},
            r"column 'text' holds int64, not texts or c.*; its columns of text: 'cont",
        ),
        ({"text": ["a", None]}, r"web\.parquet, row 2: the value of 'text' must be a string or a list .*, not null"),
        ({"text": [b"a", b"\xff"]}, r"web\.parquet is not UTF-8 in row 2: byte 0 is 0xff; .*--encoding-errors replace"),
        ({"text": [" ", ""]}, r"web\.parquet contains no text"),
    ],
)
def test_a_table_without_texts_is_an_error_that_names_its_columns(
    tmp_path: Path, columns: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        scan([parquet_file(tmp_path / "web.parquet", columns)])


def test_a_message_that_is_not_utf8_is_named_by_its_row_or_replaced(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    content = pyarrow.array([b"Hello", b"a\xffb"])
    texts = pyarrow.StringArray.from_buffers(2, content.buffers()[1], content.buffers()[2])
    messages = pyarrow.StructArray.from_arrays([pyarrow.array(["user", "assistant"]), texts], ["role", "content"])
    path = parquet_file(tmp_path / "chat.parquet", {"messages": pyarrow.ListArray.from_arrays([0, 2], messages)})
    with pytest.raises(DataError, match=r"chat\.parquet is not UTF-8 in row 1: byte 1 is 0xff; correct it, or use --e"):
        scan([path])
    (conversation,) = documents(path, encoding_errors="replace")
    assert "a\ufffdb" in conversation


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_a_truncated_parquet_file_is_an_error(tmp_path: Path, cut: int) -> None:
    path = parquet_file(tmp_path / "web.parquet", {"text": TEXTS})
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"^\S+web\.parquet is damaged, or not a Parquet file \([^\n]+\); download it"):
        scan([path])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits memory")
def test_a_page_that_claims_gigabytes_is_refused_before_it_has_them(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "a.parquet", {"text": ["one", "two"] * 20})
    content = path.read_bytes()
    assert content[4:7] == b"\x15\x04\x15"  # a page with a dictionary, and before its size
    assert content[7] < 128  # the size
    path.write_bytes(content[:7] + b"\xfe\xff\xff\xff\x0f" + content[8:])
    with pytest.raises(DataError, match=r"a\.parquet takes more than 120 MB of memory; write it again with sm"):
        scan([path])


DAMAGED_COLUMN = (
    "c-oayQESss6h0}}n6U;r;f7p|GwK>EWOEy=h*a>jt9IDnZP`$UgOx6J1-I5Lvm*Ex#0Q^!@Ij=%!pGs0|G@`A{1Kj;WUZnI9ys@$"
    "oOAMh-@Un!*k0j`ukvz}0-OU7yCwh(4nsE{4cvG?3PVPPCxhdN13%B_eJ*){>s)urP%?iTw3!;4o1=MiIY+D1wAu0af@y$b8tfv>"
    "XfQu>mcb>exa60~uaI9QUm!1<M#Y2Fu4R!}n_Ny=ZR50K8(9Jtl>Smpgm`aLA^PkcH^1I-8t?t)*NR*SHp87q9}XUWd$n77z1M%o"
    "nW(IRtsiyw!-EcI!1Ki&o5kUaxCl*031P*Yo$K#`C50n=4;-EsYoHfII>vLBv_5IpiRNv4#y?I+`0A{APHn9~p<;bJBXr?`RC)=P"
    "Ww1n+fPUAl6Xtzp-WTovw*Lpy^-~&aY*^AWtT#Fc$IfHB{ovuPbno^L?S`^)56N1X+I_?kR(p6Cv4^#!h1DuzppqKmMpBqYOw(#G"
    "c@AC@=uJxMwR%z<skM$1OXi2$DPEv>Xk=s3-ojK*wWa#^5WBdZflokMTZ!HV{wh7=Z?vC=jTTN{N%GrZyTeZO>^O`UyTjpPCyE9m"
    "_jwo{^#_OUYI$jSX+`+-{nZsH(p{4D%lrh{^P4v"
)


def test_a_damaged_column_of_a_table_does_not_end_the_process(tmp_path: Path) -> None:
    """pyarrow aborts if it is asked for the size of this column."""
    path = tmp_path / "a.parquet"
    path.write_bytes(zlib.decompress(base64.b85decode(DAMAGED_COLUMN)))
    with pytest.raises(DataError, match=r"a\.parquet (is damaged|has no column)"):
        scan(path)


def zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd
    return pytest.importorskip("backports.zstd")


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(optional_packages, "_exists", lambda module: module != "pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(MissingPackageError, match=r"reading .*a.parquet, .*needs pyarrow, which is not installed"):
        scan([path])
    with pytest.raises(MissingPackageError, match="pyarrow"):
        scan([tmp_path])


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kB on Linux")
def test_a_file_that_decompresses_to_gigabytes_takes_little_memory(tmp_path: Path) -> None:
    """400 equal values of 1 MB."""
    path = tmp_path / "bomb.parquet"
    pyarrow = pytest.importorskip("pyarrow")
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 400, pyarrow.int32()), ["x" * 2**20])
    parquet_file(path, {"text": values})
    assert path.stat().st_size < 10_000_000
    program = (
        "import resource, sys\n"
        "from minigpt.data.sources import scan\n"
        "from minigpt.errors import DataError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    print(scan(sys.argv[1]).text_bytes)\n"
        "except DataError as error:\n    print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    answer, megabytes = done.stdout.splitlines()
    assert answer == str(400 * 2**20)
    assert int(megabytes) < 200

"""Exports of WhatsApp, Telegram and ChatGPT as conversations: forms, whose messages, and what is dropped."""

import json
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from minigpt.chat_logs.conversations import reader
from minigpt.chat_logs.json_cursor import JsonCursor
from minigpt.corpus_report.locations import blocks
from minigpt.data.sources import Scan, scan
from minigpt.errors import ConfigError, DataError

NARROW = "\u202f"
TWO = ["User: Hi\nAssistant: Hello\n", "User: Still\n there?\nAssistant: Yes\n"]


def texts(path: Path, *names: str, **options: Any) -> list[str]:
    found = scan(path, me=names, **options)
    assert found.has_speakers
    return pieces(found)


def pieces(found: Scan) -> list[str]:
    return "".join(piece + "\1" * ends for piece, ends in found.pieces()).split("\1")[:-1]


# WhatsApp


def whatsapp(folder: Path, *lines: str, name: str = "chat.txt") -> Path:
    """A chat on one day, in which each line is a message a minute later."""
    path = folder / name
    text = "".join(f"[12.03.21, 18:{minute:02}:00] {line}\n" for minute, line in enumerate(lines))
    path.write_text(text.replace("[12.03.21, 18:00:00] \u200e", "\u200e[12.03.21, 18:00:00] "), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "moments",
    [
        ["[12.03.21, 18:05:12] ", "[12.03.21, 18:06:12] ", "[13.03.21, 00:01:00] "],
        [f"[3/12/21, 6:05:12{NARROW}PM] ", f"[3/12/21, 6:06:12{NARROW}PM] ", f"[3/13/21, 12:01:00{NARROW}AM] "],
        ["[12-03-2021 18:05:12] ", "[12-03-2021 18:06:12] ", "[13-03-2021 00:01:00] "],
        ["[2021-03-12, 18:05:12] ", "[2021-03-12, 18:06:12] ", "[2021-03-13, 00:01:00] "],
        ["[12.3.2021 klo 18.05.12] ", "[12.3.2021 klo 18.06.12] ", "[13.3.2021 klo 0.01.00] "],
        ["[2021/3/12 下午6:05:12] ", "[2021/3/12 下午6:06:12] ", "[2021/3/13 上午12:01:00] "],
        ["12/03/2021, 18:05 - ", "12/03/2021, 18:06 - ", "13/03/2021, 00:01 - "],
        ["2021-03-12 18:05 - ", "2021-03-12 18:06 - ", "2021-03-13 00:01 - "],
        ["12/03/2021 à 18:05 - ", "12/03/2021 à 18:06 - ", "13/03/2021 à 00:01 - "],
        [f"3/12/21, 6:05{NARROW}PM - ", f"3/12/21, 6:06{NARROW}PM - ", f"3/13/21, 12:01{NARROW}AM - "],
        ["12/3/21 6:05 p.\xa0m. - ", "12/3/21 6:06 p.\xa0m. - ", "13/3/21 12:01 a.\xa0m. - "],
        ["2021. 3. 12. 오후 6:05 - ", "2021. 3. 12. 오후 6:06 - ", "2021. 3. 13. 오전 12:01 - "],
        ["١٢\u200f/٣\u200f/٢٠٢١، ٦:٠٥ م - ", "١٢\u200f/٣\u200f/٢٠٢١، ٦:٠٦ م - ", "١٣\u200f/٣\u200f/٢٠٢١، ١٢:٠١ ص - "],
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_form_of_date_and_time_gives_the_same_conversations(tmp_path: Path, moments: list[str], end: str) -> None:
    first, second, third = moments
    lines = [f"{first}Anna: Hi", f"{second}Ben: Hello", f"{third}Anna: Still", "there?", f"{third}Ben: Yes", ""]
    path = tmp_path / "chat.txt"
    path.write_bytes(end.join(lines).encode())
    assert texts(path, "Ben") == TWO


@pytest.mark.parametrize(
    ("dates", "n_conversations"),
    [
        (["1/2/21", "1/3/21", "1/4/21", "1/31/21", "2/1/21"], 1),  # month first: midnight is no pause
        (["1/2/21", "2/2/21", "28/2/21", "1/3/21"], 1),
        (["11/12/20", "12/12/20", "1/1/21", "2/1/21"], 1),
        (["31/2/64", "1/3/64"], 1),  # a calendar whose second month has 31 days
    ],
)
def test_the_order_of_day_and_month_is_the_one_in_which_time_runs_on(
    tmp_path: Path, dates: list[str], n_conversations: int
) -> None:
    lines = []
    for before, after in pairwise(dates):
        lines += [f"{before}, 23:59 - Anna: late", f"{after}, 00:01 - Ben: early"]
    path = tmp_path / "chat.txt"
    path.write_text("\n".join(lines))
    found = texts(path, "Ben")
    assert found[-1].endswith("User: late\nAssistant: early\n")
    assert len(found[-1].splitlines()) == 2 * n_conversations


def test_hours_have_the_half_of_the_day(tmp_path: Path) -> None:
    path = tmp_path / "chat.txt"
    times = ["3/12/21, 11:59 PM", "3/13/21, 12:59 AM", "3/13/21, 11:58 AM", "3/13/21, 12:58 PM", "3/13/21, 3:00 pm"]
    path.write_text("".join(f"{time} - {sender}: x\n" for time, sender in zip(times, "ABABA", strict=True)))
    assert texts(path, "B") == ["User: x\nAssistant: x\n", "User: x\nAssistant: x\nUser: x\n"]


def test_messages_of_one_side_are_one_turn_and_a_pause_begins_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "chat.txt"
    lines = ["18:00 - Anna: a", "18:01 - Clara: b", "18:02 - Ben: c", "18:03 - Ben: d", "21:59 - Anna: e"]
    path.write_text("".join(f"12/03/2021, {line}\n" for line in [*lines, "22:00 - Ben: f", "23:00 - Anna: g"]))
    whole = "User: a\n b\nAssistant: c\n d\nUser: e\nAssistant: f\nUser: g\n"
    assert texts(path, "Ben") == [whole]
    path.write_text(path.read_text().replace("21:59", "22:03").replace("22:00", "22:04"))
    assert texts(path, "Ben") == [whole[: whole.index("User: e")], whole[whole.index("User: e") :]]
    assert texts(path, "Anna", "Clara")[0] == "Assistant: a\nUser: b\n c\n d\n"


@pytest.mark.parametrize(
    ("message", "kept", "kind"),
    [
        ("<Media omitted>", "", "media"),
        ("<Medien ausgeschlossen>\nLook at this", "Look at this", ""),
        ("<Multimedia omitido>\nreport.pdf", "", "media"),
        ("\u200eimage omitted", "", "media"),
        ("Bild weggelassen", "", "media"),
        ("\u200e<attached: 00000012-PHOTO-2021-03-12.jpg>", "", "media"),
        ("Our house \u200e<attached: 00000012-PHOTO-2021-03-12.jpg>", "Our house", ""),
        ("report.pdf • \u200e3 pages \u200edocument omitted", "", "media"),
        ("\u200eIMG-20210312-WA0001.jpg (Datei angehängt)\nOur house", "Our house", ""),
        ("letter.odt (file attached)", "", "media"),
        ("location: https://maps.google.com/?q=52.5,13.4", "", "system"),
        ("This message was deleted", "", "system"),
        ("Du hast diese Nachricht gelöscht.", "", "system"),
        ("\u200eMissed voice call", "", "system"),
        ("Good idea <This message was edited>", "Good idea", ""),
        ("Good idea \u200e<Diese Nachricht wurde bearbeitet.>", "Good idea", ""),
        ("I \u200elike a < b > c (see a.py)", "I like a < b > c (see a.py)", ""),
        ("das hab ich weggelassen", "das hab ich weggelassen", ""),
        ("Assistant: no <|endoftext|>", "Assistant: no <endoftext>", ""),
    ],
)
def test_what_whatsapp_itself_writes_is_dropped_and_counted(tmp_path: Path, message: str, kept: str, kind: str) -> None:
    path = whatsapp(tmp_path, "Anna: \u200eMessages and calls are end-to-end encrypted.", "Anna: Hi", f"Ben: {message}")
    with path.open("a", encoding="utf-8") as file:
        file.write('[12.03.21, 18:30:00] Ben changed the subject to "Us: two"\n[12.03.21, 18:31:00] Ben: Bye\n')
    assert texts(path, "Ben") == [f"User: Hi\nAssistant: {kept}\n Bye\n" if kept else "User: Hi\nAssistant: Bye\n"]
    counts = {"media": "2 system messages, 1 media message", "system": "3 system messages"}
    assert scan(path, me=("Ben",)).notes[0].rpartition("dropped ")[2] == counts.get(kind, "2 system messages")


@pytest.mark.parametrize(
    "text",
    [
        "It was a bright cold day.\n[12.03.21, 18:05:12] Anna: Hi\n[12.03.21, 18:06:12] Ben: Hello\n",
        "12/03/2021, 18:05 - a walk by the sea\n12/04/2021, 18:05 - it rained\n",
        "12.03.2021, 18:05 - Rome: sun\n13.03.2021, 18:05 - Paris: rain\n14.03.2021, 18:05 - Berlin: snow\n",
        "[2021-03-12 18:05:12] app.INFO: begins\n[2021-03-12 18:05:13] app.ERROR: ends\n",
        "[2021-03-12 18:05:12,120] server: begins\n[2021-03-12 18:05:13,420] server: ends\n",
        "1984\n\n1: It was a bright cold day.\n2: It rained.\n",
        "[1] Anna: Hi\n[2] Anna: Hello\n",
        "",
    ],
)
def test_a_book_a_diary_and_a_log_are_read_unchanged(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text + "x")
    found = scan(path)
    assert (pieces(found), found.n_conversations, found.notes) == ([text + "x"], 0, ())


# Whose messages


def test_without_a_name_an_export_that_does_not_say_it_is_refused_with_its_senders(tmp_path: Path) -> None:
    path = whatsapp(tmp_path, "Anna: Hi", "Ben: Hello", "Anna: Bye")
    gives = r'give --me "Anna" \(2 messages\) or --me "Ben" \(1 message\)$'
    with pytest.raises(ConfigError, match=rf"chat\.txt is an export of WhatsApp that does not say .*; {gives}"):
        scan(path)
    with pytest.raises(ConfigError, match=rf"me \(Bob\) is nobody's name in these exports; {gives}"):
        scan(path, me=("Bob",))


def test_a_name_has_any_case_and_marks_and_is_chosen_of_several(tmp_path: Path) -> None:
    path = whatsapp(tmp_path, "Anna: Hi", f"~{NARROW}Ben \u202a Smith\u202c: Hello")
    assert texts(path, "Bob", "ben smith") == TWO[:1]


@pytest.mark.parametrize("name", ["WhatsApp Chat with Anna.txt", "WhatsApp-Chat mit Anna (1).txt"])
def test_the_name_of_a_file_says_with_whom_the_chat_is(tmp_path: Path, name: str) -> None:
    path = whatsapp(tmp_path, "Anna: Hi", "Ben: Hello", name=name)
    assert texts(path) == TWO[:1]
    assert "Ben is the assistant and Anna the user, as the export says (change it with --me)" in scan(path).notes[0]
    assert texts(path, "Anna") == ["Assistant: Hi\nUser: Hello\n"]


def test_chats_without_the_assistant_are_skipped_and_counted(tmp_path: Path) -> None:
    whatsapp(tmp_path, "Anna: Hi", "Ben: Hello", name="a.txt")
    whatsapp(tmp_path, "Anna: Hi", "Clara: Hello", name="b.txt")
    assert texts(tmp_path, "Ben") == TWO[:1]
    (note,) = scan(tmp_path, me=("Ben",)).notes
    assert note.startswith("WhatsApp exports ")
    assert note.endswith("Ben is the assistant and Anna the user; skipped 1 chat in which not both wrote")


def test_a_name_without_an_export_is_said_to_have_no_effect(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain")
    assert scan(tmp_path / "a.txt", me=("Ben",)).notes == (
        "no file is an export of WhatsApp or Telegram, so --me Ben is not used",
    )


# Telegram


def message(number: int, sender: str | None, text: Any, **more: Any) -> dict[str, Any]:
    name = {"from": sender, "from_id": f"user{ord(sender[0]) if sender else 0}"}
    return {"id": number, "type": "message", "date": f"2021-03-12T18:{number:02}:00", **name, "text": text, **more}


SERVICE = {"id": 0, "type": "service", "date": "2021-03-12T18:00:00", "actor": "Anna", "action": "pin", "text": ""}
LINK = ["see ", {"type": "link", "text": "example.org"}, "!"]
MESSAGES = [
    SERVICE,
    message(1, "Anna", "Hi"),
    message(2, "Ben", LINK),
    message(3, "Ben", "", photo="photos/1.jpg"),
    message(4, "Anna", "not mine", forwarded_from="News"),
    message(5, "Anna", "a caption", photo="photos/2.jpg"),
    {**message(6, "Anna", "Still\nthere?"), "date": "2021-03-13T18:06:00", "date_unixtime": "1615658760"},
]
TELEGRAM = ["User: Hi\nAssistant: see example.org!\nUser: a caption\n", "User: Still\n there?\n"]


def chat(messages: list[Any], **fields: Any) -> dict[str, Any]:
    return {"name": "Anna", "type": "personal_chat", "id": ord("A"), **fields, "messages": messages}


def write(folder: Path, value: object, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
    return path


def test_a_telegram_chat_says_who_the_owner_is(tmp_path: Path) -> None:
    path = write(tmp_path, chat(MESSAGES))
    assert texts(path) == TELEGRAM
    (note,) = scan(path).notes
    assert note == (
        f"Telegram export {path}: 4 messages in 2 conversations, each after a pause of 4 hours; Ben is the assistant "
        "and Anna the user, as the export says (change it with --me); dropped 1 system message, 1 media message, 1 "
        "forwarded message"
    )
    assert texts(path, "Anna")[0] == "Assistant: Hi\nUser: see example.org!\nAssistant: a caption\n"
    group = write(tmp_path, chat(MESSAGES, type="private_group", id=5))
    with pytest.raises(ConfigError, match=r'result\.json is an export of Telegram that .*; give --me "Anna" \(3 mess'):
        scan(group)


def test_a_telegram_account_has_chats_of_its_owner_and_skips_those_without(tmp_path: Path) -> None:
    others = chat([message(1, "Anna", "Hi"), message(2, "Clara", "Hello")], type="private_group", id=1)
    notes = chat([message(1, "Ben", "milk")], type="saved_messages", id=2)
    value = {
        "about": "Here is the data you requested.",
        "personal_information": {"user_id": ord("B"), "first_name": "Ben"},
        "contacts": {"about": "", "list": [{"user_id": 1}]},
        "chats": {"about": "This page lists all chats.", "list": [others, chat(MESSAGES, type="private_group"), notes]},
        "left_chats": {"about": "", "list": []},
    }
    path = write(tmp_path, value)
    assert texts(path) == TELEGRAM
    assert "skipped 2 chats in which not both wrote" in scan(path).notes[0]
    assert texts(path, "Clara") == ["User: Hi\nAssistant: Hello\n"]


# ChatGPT


def node(role: str, parts: Any, parent: str | None = None, **more: Any) -> dict[str, Any]:
    content = {"content_type": "text", "parts": parts} if isinstance(parts, list) else parts
    said = {"author": {"role": role}, "content": content, "recipient": "all", "metadata": {}, **more}
    return {"message": said, "parent": parent, "children": []}


def conversation(nodes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    nodes = {"root": {"message": None, "parent": None, "children": []}, **nodes}
    for name, each in nodes.items():
        each["children"] = [other for other in nodes if nodes[other]["parent"] == name]
    return {"title": "A chat", "create_time": 1.5, "mapping": nodes, **fields}


def test_of_a_chatgpt_conversation_the_open_branch_is_read_without_tools(tmp_path: Path) -> None:
    cited = "Paris\ue200cite\ue202turn0search0\ue201. Or\u30104\u2020source\u3011 Rome."
    nodes = {
        "a": node("system", [""], "root"),
        "b": node("user", {"content_type": "user_editable_context", "user_profile": "I am Ben"}, "a"),
        "c": node("user", [{"content_type": "image_asset_pointer"}, "Which city?"], "b"),
        "e": node("assistant", {"content_type": "code", "text": "search()"}, "c", recipient="browser"),
        "f": node("tool", ["a page"], "e"),
        "g": node("assistant", [cited], "f"),
        "h": node("user", [{"content_type": "image_asset_pointer"}], "g"),
        "d": node("assistant", ["Old answer"], "c"),
    }
    nodes["c"]["message"]["content"]["content_type"] = "multimodal_text"
    nodes["h"]["message"]["content"]["content_type"] = "multimodal_text"
    again = conversation({"a": node("user", ["Hi"], "root"), "b": node("assistant", ["Hello"], "a")})
    path = write(tmp_path, [conversation(nodes, current_node="h"), again], "conversations.json")
    assert texts(path) == ["User: Which city?\nAssistant: Paris. Or Rome.\n", TWO[0]]
    assert scan(path).notes == (
        f"ChatGPT export {path}: 4 messages in 2 conversations; dropped 4 system messages, 1 media message",
    )
    del nodes["e"], nodes["f"], nodes["g"], nodes["h"]
    write(tmp_path, [conversation(nodes, current_node="no such node")], path.name)
    assert texts(path) == ["User: Which city?\nAssistant: Old answer\n"]


def test_several_exports_are_read_together(tmp_path: Path) -> None:
    whatsapp(tmp_path, "Anna: Hi", "Ben: Hello")
    write(tmp_path, chat(MESSAGES))
    write(tmp_path, [conversation({"a": node("user", ["Hi"], "root")})], "conversations.json")
    assert texts(tmp_path, "Ben") == [TWO[0], "User: Hi\n", *TELEGRAM]
    assert [note.split()[0] for note in scan(tmp_path, me=("Ben",)).notes] == ["WhatsApp", "ChatGPT", "Telegram"]


OTHER: list[Any] = [
    {"name": "x", "type": "personal_chat", "id": 1, "messages": [{"role": "user", "content": "Hi"}]},
    {"name": "x", "type": "library", "id": 1, "messages": [{"id": 1, "type": "message", "date": "2021"}]},
    [{"mapping": {"a": 1}, "title": "x"}],
    [{"mapping": {"a": {"parent": None}}, "text": "x"}],
    {"chats": {"list": []}},
]


@pytest.mark.parametrize("value", OTHER)
def test_other_json_is_no_export(tmp_path: Path, value: object) -> None:
    write(tmp_path, value, "a.json")
    (tmp_path / "b.txt").write_text("plain")
    assert not [note for note in scan(tmp_path).notes if " export " in note]


# Files


def zipped(folder: Path, name: str, members: dict[str, str]) -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in members.items():
            archive.writestr(member, text)
    return folder / name


def test_a_zip_file_is_read_where_it_has_one_export(tmp_path: Path) -> None:
    text = whatsapp(tmp_path, "Anna: Hi", "Ben: Hello").read_text()
    other = {"__MACOSX/._chat.txt": text, "photo.jpg": "\0", "notes.txt": "plain"}
    path = zipped(tmp_path, "WhatsApp Chat - Anna.zip", {"_chat.txt": text, **other})
    assert texts(path) == TWO[:1]
    assert texts(path, "Anna") == ["Assistant: Hi\nUser: Hello\n"]
    one, two = (json.dumps([conversation({"a": node("user", [text], "root")})]) for text in ("one", "two"))
    parts = {"conversations-000.json": one, "conversations-001.json": two, "user.json": "{}", "chat.html": "<p>"}
    assert texts(zipped(tmp_path, "chatgpt.zip", parts)) == ["User: one\n", "User: two\n"]
    for members, problem in (
        (
            {"a.txt": "plain"},
            "is an archive; unpack it and give the folder or its files",
        ),
        ({"a.txt": text, "b.txt": text}, "is an archive with 2 exports; unpack it and give the folder or its files"),
    ):
        with pytest.raises(DataError, match=problem):
            scan(zipped(tmp_path, "a.zip", members))
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 no zip file")
    with pytest.raises(DataError, match=r"a\.zip is an archive; unpack it"):
        scan(tmp_path / "a.zip")


def test_a_damaged_export_is_one_sentence(tmp_path: Path) -> None:
    path = write(tmp_path, chat(MESSAGES))
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=r"result\.json is a damaged export of Telegram \(.*\); export it again"):
        scan(path, me=("Ben",))
    write(tmp_path, chat([*MESSAGES, message(9, "Ben", 7)]))
    with pytest.raises(DataError, match="is a damaged export of Telegram"):
        scan(path, me=("Ben",))


def test_an_export_in_another_encoding_is_read_and_its_conversations_have_numbers(tmp_path: Path) -> None:
    path = whatsapp(tmp_path, "Änna: Hi", "Ben: Hello")
    path.write_bytes(path.read_text(encoding="utf-8").encode("cp1252"))
    found = scan(path, me=("Ben",), encoding="windows-1252")
    assert pieces(found) == TWO[:1]
    assert [(block.line, block.text) for block in blocks(found)] == [(1, TWO[0])]
    assert reader.notes(found.files, "text") == list(found.notes)


def test_a_cursor_reads_values_one_by_one() -> None:
    cursor, found = JsonCursor(' {"a": [1, {"b": []}], "c": {}} '), []
    for key in cursor.object_keys():
        found += [key, *(cursor.value() for _ in cursor.elements())] if key == "a" else [key, cursor.value()]
    assert found == ["a", 1, {"b": []}, "c", {}]
    assert cursor.at_end()


@pytest.mark.parametrize("text", ["", "1", "[1", "[1 2]", "[1,]", "[" * 100_000])
def test_a_cursor_refuses_what_is_not_json(text: str) -> None:
    cursor = JsonCursor(text)
    with pytest.raises(ValueError, match=r"."):
        [cursor.value() for _ in cursor.elements()]
    with pytest.raises(ValueError, match=r"."):
        [JsonCursor(f"{{{text or 1}: 1}}").value() for _ in JsonCursor(f"{{{text or 1}: 1}}").object_keys()]


# From an export to a chat, as docs/how-to/chat.md has it


def test_an_export_is_trained_on_resumed_evaluated_and_talked_to(run: Callable[..., Any], here: Path) -> None:
    lines = ["Anna: Where are you?", "Ben: At home.\nAnd you?", "Anna: At work.", "Ben: See you!"] * 10
    whatsapp(here, *lines, name="WhatsApp Chat with Anna.txt")
    shape = ("--n-layer", "1", "--n-head", "2", "--n-embd", "16", "--context-length", "32")
    options = ("--steps", "2", "--name", "ben", "--validation-fraction", "0.2", *shape)
    train = ("train", "WhatsApp Chat with Anna.txt", *options)
    refused = run(*train, "--me", "Bob")
    assert refused.exit_code == 1
    assert refused.stderr.endswith('; give --me "Anna" (20 messages) or --me "Ben" (20 messages)\n')
    trained = run(*train, "--me", "Ben")
    assert trained.exit_code == 0, trained.output
    assert "40 messages in 1 conversation" in " ".join(trained.stderr.split())
    assert "Ben is the assistant and Anna the user" in " ".join(trained.stderr.split())
    record = json.loads((here / "checkpoints" / "ben" / "training.json").read_text())
    assert record["reading"]["me"] == ["Ben"]
    resumed = run("train", "--resume", "--name", "ben", "--steps", "3")
    assert resumed.exit_code == 0, resumed.output
    changed = run("train", "--resume", "--name", "ben", "--steps", "4", "--me", "Anna")
    assert changed.exit_code == 1
    assert "me" in changed.stderr
    assert "--allow-change" in changed.stderr
    (here / "other.txt").write_text((here / "WhatsApp Chat with Anna.txt").read_text().replace("work", "sea"))
    evaluate = ("evaluate", "ben", "other.txt", "--json", "--loss-on", "assistant")
    assert run(*evaluate).exit_code == 1
    measured = run(*evaluate, "--me", "ben")
    assert measured.exit_code == 0, measured.output
    assert json.loads(measured.stdout)["loss_on"] == "assistant"
    assert "--me Ben is only for exports of chats" in run("evaluate", "ben", "lambada", "--me", "Ben").stderr
    report = run("corpus", "other.txt", "--me", "Ben", "--json")
    assert report.exit_code == 0, report.output
    assert run("generate", "Hi", "--memorization", "--corpus", "other.txt", "--model", "ben").exit_code == 0
    talked = run("chat", "ben", "--max-new-tokens", "5", stdin="Where are you?\n/show\n/quit\n")
    assert talked.exit_code == 0, talked.output
    assert "User: Where are you?\nAssistant:" in talked.stdout

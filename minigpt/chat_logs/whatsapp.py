"""Reads the text of a WhatsApp export, whatever the language and the date format of the phone."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import pairwise
from pathlib import PurePath

from minigpt.chat_logs.exported_chat import MEDIA, SYSTEM, ExportedChat

# [12.03.21, 18:05:12] Anna: text (iPhone) or 12/03/2021, 6:05 PM - Anna: text (Android). The spaces may be narrow and
# unbreakable, the digits Arabic, and AM or PM before the time; a word such as "at" or "klo" may follow the date.
_NUMBER = r"(\d{1,4})"
_MOMENT = (
    rf"{_NUMBER}\s?[./-]\s?{_NUMBER}\s?[./-]\s?{_NUMBER}\.?[,،]?\s([^\d\W]?[^\d\[\]:]{{0,9}}?)"
    r"(\d{1,2})[:.](\d{2})(?:[:.](\d{2}))?(?:\s?([^\W\d][^\d\[\]:–-]{0,7}))?"
)
_IPHONE = re.compile(rf"\u200e?\[{_MOMENT}\]\s?(.*)", re.DOTALL)
_ANDROID = re.compile(rf"\u200e?{_MOMENT}\s[-–]\s(.*)", re.DOTALL)
_AFTERNOON = {"pm", "下午", "晚上", "中午", "午後", "오후", "م", "μμ"}
_MORNING = {"am", "上午", "凌晨", "早上", "午前", "오전", "ص", "πμ"}
_SENDER = re.compile(r"\u200e?([^:\"“”„«»\n]{1,80}?)\s?:(?:\s|$)")
_LOG_LEVEL = re.compile(
    r"(?:.*\W)?(?:trace|debug|info|notice|warn|warning|error|critical|fatal|severe)\W*", re.IGNORECASE
)
_MARKS = dict.fromkeys(map(ord, "\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"))
_OWN = "\u200e"  # before what WhatsApp itself writes: system messages, names of media, "edited"

# WhatsApp's own words where no mark is before them, in the languages of most of its users.
_EDITED = re.compile(
    r"\s*<[^<>\n]*\b(?:edit|bearbeitet|modifi|bewerkt|изменен|отредакт|düzenlendi|redig|編集|수정|编辑|編輯)[^<>\n]*>\u200e?$",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"<[^<>\n]{3,60}>")  # <Media omitted>, <attached: name.jpg>
_ATTACHED = re.compile(
    r"\u200e?[^\n]*(?:-WA\d+\.\w{2,5} \([^()\n]+\)|\.\w{2,5} \((?:file attached|Datei angehängt|archivo adjunto|"
    r"fichier joint|file allegato|(?:arquivo|ficheiro) anexado|bestand bijgevoegd|файл добавлен|dosya ekli)\))"
)
_OMITTED = re.compile(
    r"\S{0,5}(?:image|photo|video|audio|voice message|video note|GIF|sticker|document|contact card|Bild|Dokument|"
    r"Kontaktkarte|imagen|vídeo|documento|tarjeta de contacto|vidéo|fiche contact|immagine|scheda contatto|"
    r"imagem|áudio|figurinha|cartão do contato|afbeelding|contactkaart|изображение|видео|аудио|стикер|документ)"
    r" (?:omitted|weggelassen|ausgelassen|omitid[oa]|absente?|omis|omise|omess[oa]|esclus[oa]|ocult[oa]|"
    r"não revelad[oa]|weggelaten|отсутствует|опущен[оа]?)",
    re.IGNORECASE,
)
_NO_TEXT = re.compile(
    r"(?:This message was deleted|You deleted this message|Diese Nachricht wurde gelöscht|Du hast diese Nachricht "
    r"gelöscht|(?:Se eliminó|Eliminaste) este mensaje|Este mensaje fue eliminado|(?:Ce message a été|Vous avez) "
    r"supprimé(?: ce message)?|Questo messaggio è stato eliminato|Hai eliminato questo messaggio|(?:Esta m|M)ensagem"
    r"(?: foi)? apagada|Você apagou esta mensagem|Dit bericht is verwijderd|(?:Je|U) hebt dit bericht verwijderd|"
    r"(?:Данное сообщение удалено|Вы удалили данное сообщение)|Bu mesaj silindi|null|\S+: https://maps\.google\.com/\?q=\S+)\.?"
)
_FILE_NAME = re.compile(r"\S[^\n]*\.\w{2,5}")
_FEWEST = 2  # messages in a file that is recognized


def is_whatsapp(text: str, _whole: Callable[[], str]) -> bool:
    """Whether a text that begins like this is an export: its first line and others are messages, of fewer senders.

    A log of a program, whose senders are log levels, is none.
    """
    senders: Counter[str] = Counter()
    for moment, message in _entries(text):
        if not moment:
            return False
        if found := _SENDER.match(message):
            senders[found[1]] += 1
    of_levels = sum(number for sender, number in senders.items() if _LOG_LEVEL.fullmatch(sender))
    n_messages = senders.total()
    return n_messages >= _FEWEST and len(senders) <= max(_FEWEST, n_messages // 2) and of_levels < n_messages / 2


def read_whatsapp(text: str, name: str) -> Iterator[ExportedChat]:
    """The one chat of a file; of two senders, the owner is the one whose name does not end the name of the file, as in
    "WhatsApp Chat with Anna.txt"."""
    entries, chat = list(_entries(text)), ExportedChat()
    days = _days([moment[:3] for moment, _ in entries])
    for day, (moment, message) in zip(days, entries, strict=True):
        sender, time = _SENDER.match(message), 86_400 * day + _second_of_day(moment[3:])
        if sender is None:
            chat.dropped[SYSTEM] += 1
            continue
        written, otherwise = _written(message[sender.end() :].strip(" \t\r\n"))
        chat.add(sender[1].strip("~ \u202f\xa0"), written, time, otherwise=otherwise)
    stem = PurePath(PurePath(name).name.removesuffix(".gz").removesuffix(".zst")).stem
    senders = dict.fromkeys(each.sender for each in chat.said)
    others = [each for each in senders if not re.search(rf"(?:^|\W){re.escape(each)}(?: ?\(\d+\))?$", stem)]
    if len(others) == 1 < len(senders) == 2:
        chat.owner = others[0]
    yield chat


Moment = tuple[str, ...]  # three numbers of a date; what is before the time, hour, minute, second, what is after it


def _entries(text: str) -> Iterator[tuple[Moment, str]]:
    """The date and time and the text of each message, which may have several lines; of lines before the first message,
    the date is empty."""
    lines = text.translate(_MARKS).split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    form = _IPHONE if lines[first].lstrip(_OWN).startswith("[") else _ANDROID
    moment, message = Moment(), list[str]()
    for line in lines[first:]:
        found = form.match(line.rstrip("\r"))
        if found is None:
            message.append(line.rstrip("\r"))
            continue
        if moment or message:
            yield moment, "\n".join(message)
        *parts, rest = found.groups(default="")
        moment, message = tuple(parts), [rest]
    if moment:
        yield moment, "\n".join(message)


def _written(text: str) -> tuple[str, str]:
    """What the sender wrote of a message, and what the message is if that is nothing."""
    text = _EDITED.sub("", text)
    first, _, caption = text.partition("\n")
    caption = "" if _FILE_NAME.fullmatch(caption.strip()) else caption
    if _ATTACHED.fullmatch(first) or _PLACEHOLDER.fullmatch(first.strip(_OWN)) or _OMITTED.fullmatch(first.strip(_OWN)):
        return caption, MEDIA
    if _NO_TEXT.fullmatch(text.strip(_OWN)):
        return "", SYSTEM
    if text.startswith(_OWN):
        return "", MEDIA if _OMITTED.search(text) or _PLACEHOLDER.search(text) else SYSTEM
    before, mark, own = text.partition(_OWN)
    own = own.strip()
    if mark and before.rstrip().endswith("•"):  # a document: its name, the number of its pages
        return "", MEDIA
    if mark and (_PLACEHOLDER.fullmatch(own) or _OMITTED.fullmatch(own.strip(_OWN))):
        return before, MEDIA
    return text.replace(_OWN, ""), SYSTEM


def _second_of_day(time: Sequence[str]) -> int:
    before, hour, minute, second, after = time
    words = {re.sub(r"[\W\d]", "", each).lower() for each in (before, after) if each}
    hours = int(hour)
    if words & (_AFTERNOON | _MORNING):
        hours = hours % 12 + 12 * bool(words & _AFTERNOON)
    return 3600 * hours + 60 * int(minute) + int(second or 0)


def _days(dates: Sequence[Sequence[str]]) -> list[int]:
    """The number of each day, from the order of day, month and year in which time seldom runs backwards.

    A date that is none in that order is on the day before it.
    """
    numbers = [tuple(map(int, each)) for each in dates]
    is_iso = any(each[0] > 31 for each in numbers)
    readings = []
    for order in [(2, 1, 0)] if is_iso else [(0, 1, 2), (1, 0, 2)]:
        days = [_day(*(each[index] for index in order)) for each in numbers]
        known = [day for day in days if day is not None]
        wrong = len(days) - len(known) + sum(later < day for day, later in pairwise(known))
        readings.append((wrong, days))
    best, last = min(readings, key=lambda each: each[0])[1], 0
    filled = []
    for day in best:
        last = last if day is None else day
        filled.append(last)
    return filled


def _day(day: int, month: int, year: int) -> int | None:
    """The number of a day; also of one in a calendar whose months have other lengths."""
    if not (1 <= month <= 12 and 1 <= day <= 32 and 1 <= year <= 9000):
        return None
    return date(year + 2000 if year < 100 else year, month, 1).toordinal() + day - 1

"""Which languages a text is in, guessed by their commonest small words; it knows only those that are listed here."""

import re
from collections import Counter
from collections.abc import Mapping

_LISTS: Mapping[str, str] = {
    "English": "the and of that was with his which they this from had not you are were been have would there "
    "by do to on in he me so as is it be at or if an we us my for war all men also over how",
    "French": "les des est dans une pour qui que par sur avec elle nous vous mais cette ses était ces leur "
    "de la le et se en un",
    "German": "der und das ist nicht ein zu mit sich auf den dem von auch wie aber nur wenn noch nach war "
    "in an die was so des es",
    "Spanish": "los las una por con del pero sus como más este había muy cuando sin sobre también yo fue y "
    "que de la el en se con para no lo su",
    "Italian": "che della non gli sono dei nel più anche questo alla delle ma suo come era essere lo perché è "
    "con la di il un se in",
    "Portuguese": "não uma os dos com mais foi ele das à seu sua ou quando muito já também pelo até são "
    "que de se para no em por se",
    "Dutch": "het een van niet dat zijn op voor met hij maar aan ook naar heeft haar werd toen deze zij "
    "de in is was te den om",
    "Swedish": "och att det som på är av för med till inte han hade jag var från honom skulle vid sig den en de var",
    "Danish": "og det af ikke der på til er han de jeg hun blev efter havde også ville sagde hvor "
    "den en de var som på til",
    "Polish": "się nie jest że na jak przez ale był do jego który było tym już tak dla jej po czy i z a w o ze by",
    "Czech": "že se na je jsem by byl tak jako ale když který jeho od za ještě již nebo však byla a i v k o do",
    "Turkish": "bir bu ve için çok gibi olarak daha sonra kadar ama olan diye değil onun ne vardı de da o",
    "Latin": "et non est ad cum quod sed ut enim atque qui quae sunt etiam aut hoc autem nec esse in ex si de non",
    "Russian": "и не на что он как это его но она из был было все так уже только бы когда меня",
    "Ukrainian": "і не на що він як це його але вона з був було все так вже тільки коли мене й",
    "Greek": "και το να του της με που για δεν από είναι στο τον την τα στην μου θα ήταν",
}
_OWNERS: dict[str, list[str]] = {}
for _language, _list in _LISTS.items():
    for _word in _list.split():
        _OWNERS.setdefault(_word, []).append(_language)
# A word that two languages share tells neither from the other.
_LANGUAGE_OF = {word: owners[0] for word, owners in _OWNERS.items() if len(owners) == 1}

_WORD = re.compile(r"[^\W\d_]+")
_ENOUGH = 20  # such words, before anything is said
_SHARE = 0.02  # of them, below which a language is a quotation, or chance
_AT_ONCE = 2**20  # bytes, lest all words stand in memory at once


def language_shares(text: bytes) -> dict[str, float]:
    """The share of each language among the small words of a UTF-8 text that tell one, the largest first.

    It is empty where these are few. Chinese, Japanese, and whatever is not listed here have none: their scripts tell
    them, or nothing does.
    """
    counts: Counter[str] = Counter()
    for start in range(0, len(text), _AT_ONCE):
        words = _WORD.findall(text[start : start + _AT_ONCE].decode(errors="ignore").lower())
        counts.update(_LANGUAGE_OF[word] for word in words if word in _LANGUAGE_OF)
    total = counts.total()
    if total < _ENOUGH:
        return {}
    return {name: count / total for name, count in counts.most_common() if count >= _SHARE * total}

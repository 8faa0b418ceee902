"""Changes of documents, texts and bytes, drawn from a seeded generator."""

import gzip
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS = [
    *(0, 1, -1, 2, 3, 4, 7, 8, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**63, 2**64),
    *(-2, -(2**31), -(2**63), 10**18, 10**40, 10**400, 10**400, -(10**400), True, False),
    *(0.5, -0.0, 1.0, 1e-320, 1e300, 1e308, -1e308, float("nan"), float("inf"), -float("inf")),
]
TEXTS = [
    *("", " ", "0", "-1", "1e400", "nan", "inf", "null", "256k", "1_0", "²", "٣", "é", "=1+1", "@"),
    *(
        "9" * 400,
        "9" * 5000,
        "x" * 300,
        "a b " * 300,
        "x" * 20_000,
        "Q",
        "KV",
        "OUT",
        "cut",
        "plan",
    ),
    *("\x1b[31m", "\x07\x08", "\ud800", "\0", "\u202e", "\r\n", "\n", "\t=1", "../x", "a-b-c"),
    *("ring", "causal", "full", "window:4", "chunks:2", "documents:8,8", "h100", "%s%n{0}{x}"),
]
EXTREME = [number for number in NUMBERS if not 8 < number < 2**16]  # soon computed, or refused
SNIPPETS = [*",:;[]{}()\"'&|@/=-+.0123456789eEkM \n\t\0", "\ufeff", "\u2028", "null", "[[", "NaN"]
Path = tuple[Any, ...]


def value(random: Random) -> Any:
    """A value that may be anything."""
    simple = [None, [], {}, random.choice(NUMBERS), random.choice(TEXTS)]
    return random.choice([*simple, *simple[3:] * 2, [random.choice(NUMBERS)] * 3])


def places(document: Any, path: Path = ()) -> list[Path]:
    """Every place in a document, its root first."""
    inner: list[Path] = [path]
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, entry in items:
        at = (*path, key)
        inner += places(entry, at) if isinstance(entry, dict | list) else [at]
    return inner


def changed(document: Any, random: Random) -> Any:
    """A copy of a document with one change, most often of a single value."""
    document = deepcopy(document)
    path = random.choice(places(document)) if isinstance(document, dict | list) else ()
    if not path:
        return random.choice([value(random), [document], document])
    *outer, key = path
    holder = document
    for step in outer:
        holder = holder[step]
    holder_changed = random.choice(CHANGES)
    holder_changed(holder, key, random)
    return document


def put(holder: Any, key: Any, random: Random) -> None:
    holder[key] = value(random)


def nudge(holder: Any, key: Any, random: Random) -> None:
    """A number that is nearly the same, a text with a sign more or less."""
    old = holder[key]
    if isinstance(old, int | float):
        holder[key] = random.choice([old + 1, old - 1, -old, old * 2, old // 2, str(old)])
    elif isinstance(old, str):
        holder[key] = text(old, random)
    else:
        put(holder, key, random)


def drop(holder: Any, key: Any, random: Random) -> None:
    del holder[key]


def swap(holder: Any, key: Any, random: Random) -> None:
    other = random.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
    holder[key], holder[other] = holder[other], holder[key]


def copy(holder: Any, key: Any, random: Random) -> None:
    """Another entry's value, or the same one a second time."""
    if isinstance(holder, dict):
        holder[key] = deepcopy(holder[random.choice([*holder])])
    else:
        holder.insert(random.randrange(len(holder) + 1), deepcopy(holder[key]))


def repeat(holder: Any, key: Any, random: Random) -> None:
    holder[key] = [holder[key]] * random.choice([2, 17, 1000])


def nest(holder: Any, key: Any, random: Random) -> None:
    for _ in range(random.choice([1, 2, 40])):
        holder[key] = random.choice([[holder[key]], {"a": holder[key]}])


def rename(holder: Any, key: Any, random: Random) -> None:
    if isinstance(holder, dict):
        holder[random.choice([*TEXTS, key + "x", key[:-1]])] = holder.pop(key)
    else:
        put(holder, key, random)


CHANGES: list[Callable[[Any, Any, Random], None]] = [
    *(put, put, put, nudge, nudge, nudge, drop, swap, copy, repeat, nest, rename),
]


def text(old: str, random: Random) -> str:
    """A text with a few characters more, less or other ones."""
    for _ in range(random.choice([1, 1, 1, 2, 5])):
        at = random.randrange(len(old) + 1)
        end = min(len(old), at + random.choice([0, 0, 1, 1, 2, 8]))
        other = random.choice([random.choice(SNIPPETS), old[at:end] * 2, random.choice(TEXTS), ""])
        old = old[:at] + other + old[end:]
    return old


def deep(random: Random) -> str:
    return random.choice("[({") * random.choice([100, 5000, 100_000])


def content(written: str, random: Random) -> bytes:
    """The bytes of a text: most often its own, else cut, damaged or of another encoding."""
    kind = random.randrange(12)
    if kind == 0:
        written = text(written, random)
    elif kind == 1:
        written = written[: random.randrange(len(written) + 1)]
    elif kind == 2 and not random.randrange(4):
        written = deep(random) + written
    raw = written.encode("utf-8", "surrogatepass")
    if kind == 3:
        return random.choice(
            [
                raw[: len(raw) // 2] + b"\xff\xfe" + raw[len(raw) // 2 :],
                written.encode("utf-16", "surrogatepass"),
                b"\xef\xbb\xbf" + raw,
                bytes(random.randrange(256) for _ in range(40)),
                gzip.compress(raw, 1, mtime=0),
            ]
        )
    return raw


def packed(raw: bytes, random: Random) -> bytes:
    """The bytes packed, now and then damaged, or a bomb."""
    whole = gzip.compress(raw, 1, mtime=0)
    match random.randrange(40):
        case 0:
            return whole[: random.randrange(len(whole))]
        case 1:
            at = random.randrange(len(whole))
            return whole[:at] + bytes([random.randrange(256)]) + whole[at + 1 :]
        case 2:
            return BOMB
        case _:
            return whole


BOMB = gzip.compress(b"[" + b"[]," * (25 << 20), 1, mtime=0)


def as_json(document: Any) -> str:
    return json.dumps(document)


def as_toml(document: Any) -> str:
    """Tables as keys of one line each; what TOML cannot say stands there all the same."""
    if not isinstance(document, dict):
        return f"value = {inline(document)}\n"
    return "".join(f"{json.dumps(str(k))} = {inline(v)}\n" for k, v in document.items())


def inline(entry: Any) -> str:
    match entry:
        case dict():
            pairs = (f"{json.dumps(str(key))} = {inline(part)}" for key, part in entry.items())
            return f"{{ {', '.join(pairs)} }}"
        case list():
            return f"[{', '.join(map(inline, entry))}]"
        case bool():
            return str(entry).lower()
        case float() | int():
            return repr(entry)
        case str():
            return json.dumps(entry)
        case _:
            return "null"


def words(command: Sequence[str], options: Sequence[str], random: Random) -> list[str]:
    """A command line with a few words more, less or other ones; numbers are never extended."""
    line = [*command]
    for _ in range(random.choice([1, 1, 2, 3])):
        at = random.randrange(1, len(line) + 1)
        hostile = random.choice([random.choice(TEXTS), short(random.choice(EXTREME))])
        match random.randrange(7):
            case 0 | 1 if at < len(line) and not line[at].startswith("-"):
                line[at] = hostile
            case 2 if at < len(line):
                del line[at]
            case 3:
                line.insert(at, random.choice(options))
            case 4:
                line[at:at] = [random.choice(options), hostile]
            case 5 if at < len(line) and not line[at].isdigit():
                line[at] = text(line[at], random)
            case _:
                line[at:at] = line[at : at + 1]
    return line


def short(number: Any) -> str:
    return str(number).lower()

"""The command-line language: what it reads, and what it says when it cannot."""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringloom.planner.errors import PlanError, RingloomError
from ringloom.planner.given import parse_tokens
from ringloom.planner.masks import (
    MASKS,
    BlockCausal,
    Blocks,
    Causal,
    Chunks,
    Documents,
    Full,
    Global,
    Keys,
    Mask,
    Prefix,
    Slices,
    Tree,
    Varlen,
    Window,
    parse,
    parsing,
)
from ringloom.planner.parse import parse_schedule
from ringloom.planner.workload import Workload
from strategies import masks


@given(st.data(), st.integers(1, 24), st.integers(1, 24))
def test_a_mask_reads_back_from_its_text(data: st.DataObject, seq: int, kv_seq: int) -> None:
    written = data.draw(masks(seq, kv_seq, depth=3))
    assert parse(str(written)).up_to(kv_seq) == written.up_to(kv_seq)


@given(st.text("causlfp:4k,()&| @/inf0", max_size=30))
def test_any_text_is_a_mask_or_a_one_line_error(text: str) -> None:
    try:
        read: Mask | RingloomError = parse(text)
    except RingloomError as error:
        read = error
    assert isinstance(read, Mask) or "\n" not in str(read)


def every_text() -> Iterator[str]:
    """Each mask that takes numbers, with up to three of them, or two lists of up to two."""
    lists = [",".join(x) for n in range(4) for x in product(["0", "3", "5", "inf", "-"], repeat=n)]
    short = [numbers for numbers in lists if numbers.count(",") < 2]
    texts = [*lists, *map("/".join, product(short, short))]
    yield from (f"{start}{text}" for start in MASKS if start.endswith(":") for text in texts)


def test_whatever_text_is_accepted_means_what_it_says() -> None:
    """Its own text reads back as the same mask, and its pairs are those that it allows."""
    queries, keys, accepted = range(-1, 8), range(8), 0
    for text in every_text():
        try:
            mask = parse(text)
            work = Workload(9, kv_seq=8, mask=mask)
        except RingloomError:
            continue
        accepted += 1
        assert parse(str(mask)) == mask
        assert work.mask.pairs((queries,), (keys,)) == mask.allowed(queries, keys).sum()
        with suppress(PlanError):  # chunks have no end outside a workload
            assert mask.pairs((queries,), (keys,)) == mask.allowed(queries, keys).sum()
    assert accepted > 30, "a check that finds nothing must not pass"


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("4096", 4096), ("256k", 262144), ("256K", 262144), ("1M", 2**20), (" 8 ", 8)],
)
def test_lengths_are_powers_of_two(text: str, number: int) -> None:
    assert parse_tokens(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5k", "-1", "1G", "1kk", "٣", "9" * 5000])
def test_other_lengths_are_refused_by_name(text: str) -> None:
    with pytest.raises(PlanError, match="is not a number of tokens, such as 4096, 256k or 1M"):
        parse_tokens(text)


AS_PRINTED: dict[str, Mask] = {
    "causal": Causal(),
    "window:4096": Window(4096),
    "window:128,128": Window(128, 128),
    "window:inf": Window(None),
    "window:inf,inf": Window(None, None),
    "prefix:1024": Prefix(1024),
    "documents:2,3/1,4": Documents((2, 3), (1, 4)),
    "blocks:8:01/10": Blocks(((False, True), (True, False)), 8),
    "keys:100": Keys(100),
    "chunks:8": Chunks(8),
    "block-causal:8": BlockCausal(8),
    "tree:8,4,4/-,0,0": Tree((8, 4, 4), (None, 0, 0)),
    "slices:0,4,0,4,bi/4,5,0,2,full": Slices(((0, 4, 0, 4, "bi"), (4, 5, 0, 2, "full"))),
    "varlen:4,5/7,4": Varlen((4, 5), (7, 4)),
    "varlen:4,5/7,4/2,inf": Varlen((4, 5), (7, 4), 2, None),
    "causal & (window:4096 | global:64)": Causal() & (Window(4096) | Global(64)),
    "full & causal & prefix:2": (Full() & Causal()) & Prefix(2),
    "full | causal & prefix:2": Full() | (Causal() & Prefix(2)),
}
OTHERWISE: dict[str, Mask] = {
    "window:4k": Window(4096),
    "window:inf, 0": Window(None, 0),
    "documents:512, 1k": Documents((512, 1024)),
    "causal&(window:4k|global:64)": Causal() & (Window(4096) | Global(64)),
    "((causal))": Causal(),
    "tree:8, 4,4/-, 0,0": Tree((8, 4, 4), (None, 0, 0)),
    "slices:0,4,0,1k, bi/4,5,0,2,full": Slices(((0, 4, 0, 1024, "bi"), (4, 5, 0, 2, "full"))),
}


@pytest.mark.parametrize("text", [*AS_PRINTED, *OTHERWISE])
def test_masks_are_read_as_documented_and_print_so(text: str) -> None:
    assert parse(text) == (AS_PRINTED | OTHERWISE)[text]
    assert str(parse(text)) == text or text in OTHERWISE


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("dropout", "train without"),
        ("alibi", "rotary positions or a window"),
        ("softcap", "normalise queries and keys"),
        ("sink", "use --sinks"),
        ("sinks", "use --sinks"),
    ],
)
def test_what_no_mask_can_say_is_refused_by_name_with_what_would_do(
    name: str, instead: str
) -> None:
    for text in (name, f"{name}:4", f"causal & {name}:0.1"):
        with pytest.raises(PlanError, match=rf"not expressible: {name} \(.*{instead}"):
            parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a mask is missing at the end; masks: full, causal"),
        ("casual", r"'casual' is not a mask; did you mean causal\? masks: full, causal"),
        ("CAUSAL", r"'CAUSAL' is not a mask; did you mean causal\? masks: full, causal"),
        ("window", r"'window' is not a mask; did you mean window:4096\? masks: .*window:4096"),
        ("causal:4", "'causal:4' is not a mask"),
        ("causal,window:4", r"masks: full, .*; join with & or \|"),
        ("window:x", "'window:x': 'x' is not a number of tokens"),
        ("window:-", "'-' is not a number of tokens"),
        ("window:1/2", "the numbers do not fit window:4096"),
        ("window:1,2,3", "the numbers do not fit window:4096 or window:128,128"),
        ("documents:1/2/3", "the numbers do not fit documents:A,B"),
        ("blocks:4", "SIZE:ROWS"),
        ("keys:3,4", "'keys:3,4': 2 numbers of keys, .* pack the rows into documents"),
        ("chunks:", "the numbers do not fit chunks:8192"),
        ("chunks:4,5", "'chunks:4,5': the numbers do not fit chunks:8192"),
        ("block-causal:4,inf", "the numbers do not fit block-causal:512"),
        ("prefix:4,4", "the numbers do not fit prefix:N"),
        (
            "slices:0,4,0,4k,full/0,999999999999999999M,0,4,full",
            "slice 1: .* is more than 2147483648",
        ),
        ("documents:" + "0," * 2**20 + "1", "takes at most 1048576 lengths, not 1048577"),
        ("tree:" + "0," * 2**13 + "1/" + "-," * 2**13 + "-", "at most 8192 nodes, not 8193"),
        ("slices:" + "0,0,0,0,full/" * 2**20 + "0,0,0,0,full", "at most 1048576 rows, not 1048577"),
        ("varlen:4,4", "the numbers do not fit varlen:A,B/QA,QB"),
        ("tree:4,4", "the numbers do not fit tree:8,4,4/-,0,0"),
        ("tree:4,4/-,x", "'x' is not a number of tokens"),
        ("slices:0,4,0,4", r"slice 0 must be \(q0, q1, k0, k1, kind\)"),
        ("causal causal", "'causal' is unexpected after 'causal'; join masks with & or |"),
        ("causal &", "a mask is missing at the end"),
        ("& causal", "a mask is missing before '&'"),
        ("(causal", "a parenthesis is not closed"),
        ("causal)", r"'\)' is unexpected after 'causal'"),
        ("()", r"a mask is missing before '\)'"),
        ('documents@"x', "'\"' is unexpected|cannot be read"),
        ("(" * 60 + "causal" + ")" * 60, "121 words with 60 parentheses is too long"),
        ("causal|" * 300 + "causal", "601 words"),
    ],
)
def test_masks_that_cannot_be_read_name_the_word(text: str, message: str) -> None:
    with pytest.raises(RingloomError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_masks_are_read_from_files(tmp_path: Path) -> None:
    lengths, file = tmp_path / "my (lengths) & more", tmp_path / "file.json"
    lengths.write_text("512, 1k\n3 4\n")
    assert parse(f'causal & documents@"{lengths}"') == Causal() & Documents((512, 1024, 3, 4))
    file.write_text(json.dumps({"size": 2, "grid": [[1, 0], [True, 1]]}))
    assert parse(f"blocks@{file}") == Blocks(((True, False), (True, True)), 2)
    file.write_text('{"size": 2, "grid": [[1]], "size": 4}')
    with pytest.raises(PlanError, match="duplicate key 'size' in an object"):
        parse(f"blocks@{file}")
    file.write_text('[[0, 4, 0, 4, "causal"], [4, 8, 0, 4, "full"]]')
    assert parse(f"slices@{file}") == Slices(((0, 4, 0, 4, "causal"), (4, 8, 0, 4, "full")))
    for root in ("null", "-1"):
        file.write_text(f'{{"lengths": [4, 8, 4], "parents": [1, {root}, 1]}}')
        assert parse(f"tree@{file} & keys:9") == Tree((4, 8, 4), (1, None, 1)) & Keys(9)


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("blocks", "{", "not JSON"),
        ("blocks", "[" * 100_000, "not JSON"),
        ("blocks", "[]", "expected JSON"),
        ("blocks", '{"size": 2}', "expected JSON"),
        ("blocks", '{"size": "2", "grid": [[1]]}', "Blocks size '2' is not a whole number"),
        ("blocks", '{"size": 2, "grid": [["1"]]}', "consist of 0s and 1s"),
        ("blocks", '{"size": 2, "grid": {"a": 1}}', "consist of 0s and 1s"),
        ("blocks", '{"size": ' + "9" * 5000 + ', "grid": [[1]]}', "not JSON"),
        ("slices", '{"rows": []}', r'expected JSON \[\[q0, q1, k0, k1, "causal"\], ...\]'),
        ("slices", "0 4 0 4 full", r"not JSON: .*; expected JSON \[\[q0, q1, k0, k1"),
        ("slices", "[[0, 4, 0, 4]]", r"slice 0 must be \(q0, q1, k0, k1, kind\)"),
        ("slices", "[5]", "slice 0 must be"),
        ("slices", '[[0, 4, 0, 4, ["full"]]]', "slice 0 must be"),
        ("slices", '[[0, 4.5, 0, 4, "full"]]', "slice 0: 4.5 is not a whole number"),
        ("slices", '[[0, true, 0, 4, "full"]]', "slice 0: True is not a whole number"),
        ("slices", f'[[0, 4, 0, {10**400}, "full"]]', "slice 0: 10000.* is more than 2147483648"),
        ("tree", "[]", "expected JSON"),
        ("tree", '{"lengths": 4, "parents": [null]}', "takes a list of lengths"),
        ("tree", '{"lengths": [4], "parents": ["0"]}', "Tree parent '0' is not a whole number"),
    ],
)
def test_files_of_masks_that_mean_nothing_are_refused(
    tmp_path: Path, form: str, text: str, message: str
) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(RingloomError, match=message):
        parse(f"{form}@{tmp_path / 'file'}")


def test_files_that_cannot_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RingloomError, match="cannot be read: No such file"):
        parse(f"documents@{tmp_path / 'absent'}")
    with pytest.raises(RingloomError, match="cannot be read: Is a directory"):
        parse(f"documents@{tmp_path}")
    with pytest.raises(RingloomError, match="cannot be read: embedded null byte"):
        parse("documents@a\0b")
    (tmp_path / "raw").write_bytes(b"\xff\xfe")
    with pytest.raises(RingloomError, match=r"cannot be read: .*decode"):
        parse(f"documents@{tmp_path / 'raw'}")
    (tmp_path / "large").write_text("1 " * 50)
    monkeypatch.setattr(parsing, "LARGEST_FILE", 99)
    with pytest.raises(RingloomError, match="is larger than 99 bytes"):
        parse(f"documents@{tmp_path / 'large'}")


def test_schedules_have_a_name_and_settings() -> None:
    assert parse_schedule("striped") == ("striped", {})
    assert parse_schedule("striped:grain=16") == ("striped", {"grain": 16})
    assert parse_schedule("usp:ulysses=2:ring=4") == ("usp", {"ulysses": 2, "ring": 4})
    assert parse_schedule("burst:layout=zigzag") == ("burst", {"layout": "zigzag"})
    assert parse_schedule("double-ring:inner=1k") == ("double-ring", {"inner": 1024})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' does not start with a schedule name"),
        (":grain=2", "does not start with a schedule name"),
        ("striped:grain", "'grain' in 'striped:grain' is not a setting such as grain=16"),
        ("striped:grain=", "is not a setting"),
        ("striped:", "'' in 'striped:' is not a setting"),
        ("usp:ring=2:ring=4", "ring is set twice"),
    ],
)
def test_schedules_that_cannot_be_read_name_the_setting(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        parse_schedule(text)

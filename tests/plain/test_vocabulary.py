"""The words of the source: nouns for locals, verbs for docstrings, the field's terms throughout.

Each rule is a function from a file's path and syntax tree to the complaints it has. Benchmarks,
tests, and the Python of the documentation keep to the same words.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pages import FENCE, Block, blocks

from repository import ROOT

PACKAGES = "planner", "simulator", "codegen", "runtimes", "ringloom"
VAGUE = {"found", "some"}
WHOSE = {"mine", "there"}
QUESTION = re.compile(r"(What|Who|Whether|How)\b")
PRIVATE = {  # private word: the term of the field
    r"hand(ed|s|ing)?[-_ ]?overs?": "partial-sum transfer",
    r"vehicles?": "launcher",
    r"comparators?": "baseline",
    r"stair_calls?": "staircase calls",
    r"moved_calls?": "shifted calls",
    r"spell(s|ed|ings?)?": "parse",
    r"heads (are )?dealt": "heads are sharded",
    r"prove[nds]?|proofs?": "verified",
    r"idles": "idle",
    r"times the mean": "1.87x the average",
    r"takes? it home": "export a program",
    r"homes|(at|away from|go(es)?|straight|com(e|es)|brings?)[-_ ]home": "owner",
    r"fullest rank": "worst rank",
    r"hand(ed|s|ing)? on": "partial-sum transfer",
    r"deal(s|t)?": "sharded, all-to-all",
    r"bright fields": "brighter cells",
    r"nobody will do better": "no plan can be much faster",
    r"stops over": "relay",
    r"repeats no attention": "does not recompute attention",
}
FORBIDDEN = {re.compile(rf"(?<![A-Za-z])({word})(?![A-Za-z])", re.I): word for word in PRIVATE}

CONSTRUCTIONS = re.compile(  # of prose that nobody would say aloud
    r"\b(that which|of which none|it holds for|so many|such as are|(is|are) told|anyhow|goes? with"
    r"|stands? (in|at|beside|below|for)|as it is|what is (left|told|said))\b",
    re.I,
)

Complaints = list[str]
Rule = Callable[[str, ast.Module], Complaints]


def named(path: str, tree: ast.Module, vague: set[str]) -> Complaints:
    """Complains of names that are assigned, and of parameters."""
    names = [(n.id, n.lineno) for n in ast.walk(tree) if isinstance(n, ast.Name)]
    names += [(n.arg, n.lineno) for n in ast.walk(tree) if isinstance(n, ast.arg)]
    return [f"{path}:{line} calls a value {name}" for name, line in names if name in vague]


def vague_locals(path: str, tree: ast.Module) -> Complaints:
    return named(path, tree, VAGUE)


def whose_locals(path: str, tree: ast.Module) -> Complaints:
    return named(path, tree, WHOSE)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def questions(path: str, tree: ast.Module) -> Complaints:
    """Docstrings that open with a question word."""
    return [
        f"{path}:{line} opens with {text.split()[0]}"
        for line, text in docstrings(tree)
        if QUESTION.match(text)
    ]


def nouns(path: str, tree: ast.Module) -> Complaints:
    """Docstrings of functions, properties apart, that open with an article instead of a verb."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return [
        f"{path}:{f.lineno} opens with {text.split()[0]}"
        for f in functions
        if re.match(r"(The|An?|Each|Every) ", text := ast.get_docstring(f) or "")
        if not any("property" in ast.unparse(d) for d in f.decorator_list)
    ]


def words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names, docstrings and messages."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)):
                yield node.lineno, text
            case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def private_words(path: str, tree: ast.Module) -> Complaints:
    return [
        f"{path}:{line} says {match[0]!r} instead of {PRIVATE[word]!r}"
        for line, text in words(tree)
        for form, word in FORBIDDEN.items()
        if (match := form.search(text))
    ]


def constructions(path: str, tree: ast.Module) -> Complaints:
    """Docstrings and messages with constructions that were removed."""
    return [
        f"{path}:{line} says {match[0]!r}"
        for line, text in words(tree)
        if (match := CONSTRUCTIONS.search(re.sub("stands? for", "", text)))  # as names may
    ]


RULES: list[Rule] = [vague_locals, whose_locals, questions, private_words]
FOLDERS: dict[str, list[Rule]] = {
    **dict.fromkeys((*PACKAGES, "benchmarks", "docs", "tests"), RULES),
    "planner": [*RULES, constructions],
    "codegen": [*RULES, constructions],
    "simulator": [*RULES, nouns],
    "runtimes": [*RULES, nouns],
}


def is_code(block: Block) -> bool:
    return block.language == "python" and not block.text.startswith(">>>")


def trees(folder: str) -> Iterator[tuple[str, ast.Module]]:
    """The files of a folder but this one, and the blocks of its pages that are Python."""
    for path in sorted({*(ROOT / folder).rglob("*.py")} - {Path(__file__)}):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))
    for page in sorted((ROOT / folder).rglob("*.md")):
        name = page.relative_to(ROOT).as_posix()
        yield from ((name, ast.parse(b.text)) for b in blocks(page) if is_code(b))


def complaints(folder: str) -> Complaints:
    """The complaints of all rules for a folder."""
    parsed = list(trees(folder))
    assert len(parsed) >= 8, "a check that finds nothing must not pass"
    return [said for path, tree in parsed for rule in FOLDERS[folder] for said in rule(path, tree)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_keeps_to_the_vocabulary(folder: str) -> None:
    assert complaints(folder) == []


def prose(page: str) -> Complaints:
    """Complaints about the prose of a page, by line; its code has rules of its own."""
    own = FENCE.sub(lambda block: "\n" * block[0].count("\n"), page)
    return [
        f"{number} says {match[0]!r}"
        for text, forms in ((page, [*FORBIDDEN]), (own, [CONSTRUCTIONS]))
        for number, line in enumerate(text.splitlines(), 1)
        for form in forms
        if (match := form.search(line))
    ]


def test_pages_keep_to_the_vocabulary() -> None:
    pages = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    assert len(pages) > 20, "a check that finds nothing must not pass"
    assert {
        page.name: said for page in pages if (said := prose(page.read_text(encoding="utf-8")))
    } == {}


def test_a_construction_is_seen_in_prose_and_not_in_code() -> None:
    assert prose("One.\nWhat is left stands below.\n") == ["2 says 'What is left'"]
    assert prose("```python\nx = 1  # of so many\n```\n\nIt holds for any length.\n") == [
        "5 says 'It holds for'"
    ]


@pytest.mark.parametrize(
    ("rule", "text", "said"),
    [
        (vague_locals, "def f(x):\n    found = x\n    return found", "a.py:2"),
        (vague_locals, "def f(some):\n    return 1", "some"),
        (vague_locals, "x = [some for some in y]", "some"),
        (whose_locals, "mine = [x for x in rows if x.rank == rank]", "mine"),
        (whose_locals, "def f(x, there):\n    return x + there", "there"),
        (questions, '"""What it is."""', "opens with What"),
        (questions, 'def f():\n    """Whether it is."""', "opens with Whether"),
        (questions, 'class A:\n    """How it is."""', "opens with How"),
        (nouns, 'def f():\n    """The sum of it."""', "opens with The"),
        (constructions, '"""It holds for any length."""', "It holds for"),
        (constructions, "raise E(f'{n} ranks, of which none owns it')", "of which none"),
        (private_words, "def check_handovers(): ...", "partial-sum transfer"),
        (private_words, "x = f'rank {r} hands over {b}'", "partial-sum transfer"),
        (private_words, '"""A comparator of it."""', "baseline"),
        (private_words, "x = 'heads are dealt'", "sharded"),
        (private_words, "x = 'memory of the fullest rank'", "worst rank"),
        (private_words, "raise E('the verifier proves it')", "verified"),
        (private_words, "homes = at_home(plan)", "owner"),
    ],
)
def test_a_private_word_is_seen(rule: Rule, text: str, said: str) -> None:
    assert said in " ".join(rule("a.py", ast.parse(text)))


@pytest.mark.parametrize("rule", [*RULES, nouns, constructions])
def test_plain_words_are_no_complaint(rule: Rule) -> None:
    text = '"""Returns the hand of an overseer; some rows are found."""\nfoundation = ideals = 1'
    assert rule("a.py", ast.parse(text)) == []

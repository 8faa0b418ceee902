"""Choices of a reader, as in a URL: ?schedule=zigzag&ranks=8&seq=256k&mask=causal ...

URLs are untrusted: every part is checked, and none may name a file.
"""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from operator import methodcaller
from typing import Any
from urllib.parse import urlencode

from ringloom.comparison import PASSES
from ringloom.planner.errors import RingloomError, unknown
from ringloom.planner.given import tokens
from ringloom.planner.planning import find_schedule
from ringloom.planner.plans import Passes
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import hardware, machines
from ringloom.simulator.network.topology import KINDS
from ringloom.simulator.network.topology import forms as topology_forms
from ringloom.simulator.scenario import Scenario, text_of, value_of

MOST_RANKS = 1024  # more take too long to answer
MOST_HEADS = 1024
LONGEST = 1 << 24  # tokens
WIDEST = 200  # characters of an entry
SCENARIO = {  # choice -> field of Scenario
    **{name: name for name in ("topology", "placement", "buffers", "share", "launch")},
    "stragglers": "speeds",
    "slow_links": "links",
}
LIKE = {"kv_heads": "heads", "v_head_dim": "head_dim"}  # choice -> the choice that it defaults to


class ChoiceError(RingloomError):
    """Raised for invalid choices; `at` maps the name of each to a message."""

    def __init__(self, at: dict[str, str]) -> None:
        super().__init__("; ".join(at.values()))
        self.at = at


@dataclass(frozen=True, slots=True)
class Choices:
    """Values of the controls; `from_query` reads and checks them."""

    schedule: str = "ring"
    ranks: int = 8
    seq: str = "256k"
    kv_seq: str = ""  # defaults to seq
    mask: str = "causal"
    heads: int = 32
    kv_heads: int = 32
    head_dim: int = 128
    v_head_dim: int = 128
    sinks: bool = False
    hardware: str = "a100-nvlink"
    pass_: Passes = "forward"
    overlap: bool = True
    stragglers: str = ""
    slow_links: str = ""
    topology: str = ""
    placement: str = ""
    buffers: str = ""
    share: str = ""
    launch: str = ""

    @property
    def work(self) -> Workload:
        """Returns the workload, with its mask parsed."""
        return Workload(
            seq=tokens(self.seq),
            kv_seq=tokens(self.kv_seq or self.seq),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            v_head_dim=self.v_head_dim,
            sinks=self.sinks,
            mask=self.mask,
        )

    @property
    def scenario(self) -> Scenario:
        """Returns the scenario."""
        return replace(self.part(*SCENARIO), overlap=self.overlap)

    def part(self, *names: str) -> Scenario:
        """Returns the scenario of some choices; raises RingloomError for invalid values."""
        texts = {SCENARIO[name]: getattr(self, name) for name in names}
        return Scenario(**{name: value_of(name, text) for name, text in texts.items() if text})

    def texts(self) -> dict[str, str]:
        """Returns the texts of the controls by name."""
        return {name.rstrip("_"): _text(value) for name, value in asdict(self).items()}

    def query(self) -> dict[str, str]:
        """Returns the parts of a URL that restore these choices, without defaults."""
        usual = Choices().texts() | {name: str(getattr(self, like)) for name, like in LIKE.items()}
        return {name: text for name, text in self.texts().items() if text != usual[name]}

    @property
    def address(self) -> str:
        """Returns the same as the query string of a URL."""
        return f"?{urlencode(self.query())}"

    @property
    def command(self) -> str:
        """Returns the command that compares the chosen schedule with the ring."""
        words = ["ringloom", "compare", "--schedules", self.schedule]
        options = {"pass": "--pass", "stragglers": "--straggler", "slow_links": "--slow-link"}
        options |= {"buffers": "--recv-buffers", "launch": "--launch-latency"}
        options["share"] = "--comm-sm-fraction"
        flags = {"schedule": [], "overlap": ["--no-overlap"], "sinks": ["--sinks"]}
        flags |= {} if self.overlap else {"share": []}  # without overlap, transfers take no share
        ranks = {"ranks": str(self.ranks), "seq": self.seq}
        for name, text in (ranks | self.query()).items():
            option = options.get(name, f"--{name.replace('_', '-')}")
            words += flags.get(name, [option, text])
        return shlex.join(words)

    @property
    def python(self) -> str:
        """Returns Python code that plans and simulates the chosen schedule."""
        names = ("heads", "kv_heads", "head_dim", "v_head_dim", "sinks", "mask")
        sizes = [f"{name}={getattr(self, name)!r}" for name in names]
        sizes += [f"kv_seq={tokens(self.kv_seq)}"] if self.kv_seq else []
        passes = "" if self.pass_ == "forward" else f", pass_={self.pass_!r}"
        return (
            "import ringloom as rl\n\n"
            f"work = rl.Workload(seq={tokens(self.seq)}, {', '.join(sizes)})\n"
            f"plan = rl.plan({self.schedule!r}, work, ranks={self.ranks}{passes})\n"
            f"result = rl.simulate(plan, {self.hardware!r}, rl.{self.scenario.python})\n"
            "print(result)"
        )


def from_scenario(scenario: Scenario, **others: Any) -> Choices:
    """Returns the choices of a scenario; raises RingloomError if the page has no control for it."""
    values = {field.name: getattr(scenario, field.name) for field in fields(Scenario)}
    values["speeds"] = scenario.speed_factors
    texts = {name: text_of(values.pop(key)) for name, key in SCENARIO.items()}
    texts["overlap"] = _text(values.pop("overlap"))
    if unknown := [name for name, value in values.items() if value != getattr(Scenario, name)]:
        raise RingloomError(f"the page has no {', '.join(unknown)}")
    return from_query(texts | {name: _text(value) for name, value in others.items()})


def entries(query: Mapping[str, str]) -> dict[str, str]:
    """Returns the text of each control for a URL, valid or not."""
    alike = {name: query[like] for name, like in LIKE.items() if _is_whole(query.get(like, ""))}
    usual = Choices().texts() | alike
    return {name: query.get(name, text) for name, text in usual.items()}


def from_query(query: Mapping[str, str]) -> Choices:
    """Returns the choices of a URL; raises ChoiceError for invalid parts."""
    texts, wrong, choices = entries(query), dict[str, str](), Choices()
    known = dict(zip(texts, fields(Choices), strict=True))
    for name, (after, check) in CHECKS.items():
        try:
            if not wrong.keys() & {*after}:
                value = {known[name].name: _value(texts[name], known[name])}
                check(choices := replace(choices, **value))
        except RingloomError as error:
            wrong[name] = str(error)
    if wrong:
        raise ChoiceError(wrong)
    return choices


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _value(text: str, field: Any) -> Any:
    """Reads a text as a value of the field's type."""
    name, usual = field.name.rstrip("_"), field.default
    if len(text) > WIDEST:
        raise RingloomError(f"{name} must have at most {WIDEST} characters, not {len(text)}")
    if isinstance(usual, bool):
        if text not in ("on", "off"):
            raise RingloomError(f"{name} must be on or off, not {text[:40]!r}")
        return text == "on"
    if isinstance(usual, int):
        if not _is_whole(text):
            raise RingloomError(f"{name} must be a whole number, not {text[:40]!r}")
        return int(text)
    return text


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


# ---- checks: one per choice, after the checks of the choices that it names


def _one_of(what: str, value: str, known: Any) -> None:
    if value not in known:
        raise RingloomError(unknown(what, value, known))


def _within(what: str, value: int, most: int, shown: object = None) -> None:
    if not 1 <= value <= most:
        raise RingloomError(f"{what} must be 1 to {most}, not {shown or value}")


def _no_file(value: str, instead: str, marks: str = "./\\") -> None:
    if any(mark in value for mark in marks):
        raise RingloomError(f"a URL must not name files: {instead}")


def _mask(given: Choices) -> None:
    _no_file(given.mask, "write out the mask", marks="@")
    Workload(tokens(given.seq), tokens(given.kv_seq or given.seq), mask=given.mask)


def _kv_seq(given: Choices) -> None:
    if given.kv_seq:
        _within("key tokens", tokens(given.kv_seq), LONGEST, given.kv_seq)


def _kv_heads(given: Choices) -> None:
    _within("kv_heads", given.kv_heads, MOST_HEADS)
    Workload(seq=1, heads=given.heads, kv_heads=given.kv_heads)


def _hardware(given: Choices) -> None:
    _no_file(given.hardware, "name a preset")
    _one_of("hardware", given.hardware, machines())


def _topology(given: Choices) -> None:
    if not given.topology:
        return
    _no_file(given.topology, "name a topology")
    if (kind := given.topology.partition(":")[0]) not in KINDS:
        raise RingloomError(f"unknown topology {kind[:40]!r}: choose {topology_forms()}")
    _routes(given, "topology")


def _routes(given: Choices, name: str, *names: str) -> None:
    """Finds the routes of a choice; raises RingloomError if it contradicts earlier choices."""
    if getattr(given, name):
        given.part(*names, name).routes(hardware(given.hardware), given.ranks)


PLACES = "ranks", "hardware", "topology", "placement"
CHECKS: dict[str, tuple[tuple[str, ...], Callable[[Choices], object]]] = {
    "schedule": ((), lambda given: find_schedule(given.schedule)),
    "ranks": ((), lambda given: _within("ranks", given.ranks, MOST_RANKS)),
    "seq": ((), lambda given: _within("tokens", tokens(given.seq), LONGEST, given.seq)),
    "kv_seq": ((), _kv_seq),
    "mask": (("seq", "kv_seq"), _mask),
    "heads": ((), lambda given: _within("heads", given.heads, MOST_HEADS)),
    "kv_heads": (("heads",), _kv_heads),
    "head_dim": ((), lambda given: _within("head_dim", given.head_dim, MOST_HEADS)),
    "v_head_dim": ((), lambda given: _within("v_head_dim", given.v_head_dim, MOST_HEADS)),
    "hardware": ((), _hardware),
    "pass": ((), lambda given: _one_of("pass", given.pass_, PASSES)),
    "stragglers": (("ranks",), lambda given: given.part("stragglers").speed(given.ranks)),
    "topology": (("ranks", "hardware"), _topology),
    "placement": (PLACES[:-1], lambda given: _routes(given, "placement", "topology")),
    "slow_links": (PLACES, lambda given: _routes(given, "slow_links", "topology", "placement")),
    **{name: ((), methodcaller("part", name)) for name in ("buffers", "share", "launch")},
    **dict.fromkeys(("sinks", "overlap"), ((), lambda _: None)),  # on or off: nothing to check
}

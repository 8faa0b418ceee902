"""The choices of a reader, as in a URL: ?schedule=zigzag&ranks=8&seq=256k&mask=causal ...

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
from ringloom.planner.given import parse_tokens
from ringloom.planner.planning import find_schedule
from ringloom.planner.plans import Passes
from ringloom.planner.workload import Workload
from ringloom.simulator.hardware import hardware, machines
from ringloom.simulator.network.topology import KINDS
from ringloom.simulator.network.topology import forms as topology_forms
from ringloom.simulator.scenario import Scenario, text_of, value_of

MOST_RANKS = 1024  # more take too long to answer
MOST_HEADS = 1024
MOST_TOKENS = 1 << 24
LONGEST_ENTRY = 200  # characters
SCENARIO = {  # choice -> field of Scenario
    **{name: name for name in ("topology", "placement", "buffers", "share", "launch")},
    "stragglers": "speeds",
    "slow_links": "links",
}
DEFAULT_TO = {"kv_heads": "heads", "v_head_dim": "head_dim"}  # choice -> its default


class ChoiceError(RingloomError):
    """Raised for invalid choices; `messages` has a message per choice."""

    def __init__(self, messages: dict[str, str]) -> None:
        super().__init__("; ".join(messages.values()))
        self.messages = messages


@dataclass(frozen=True, slots=True)
class Choices:
    """The values of the controls; `from_query` reads and checks them."""

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
            seq=parse_tokens(self.seq),
            kv_seq=parse_tokens(self.kv_seq or self.seq),
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
        return replace(self.scenario_of(*SCENARIO), overlap=self.overlap)

    def scenario_of(self, *names: str) -> Scenario:
        """Returns the scenario of some choices; raises RingloomError for invalid values."""
        texts = {SCENARIO[name]: getattr(self, name) for name in names}
        return Scenario(**{name: value_of(name, text) for name, text in texts.items() if text})

    def texts(self) -> dict[str, str]:
        """Returns the texts of the controls by name."""
        return {name.rstrip("_"): _text(value) for name, value in asdict(self).items()}

    def query(self) -> dict[str, str]:
        """Returns the parameters of a URL that restores these choices, without defaults."""
        defaults = Choices().texts()
        defaults |= {name: str(getattr(self, source)) for name, source in DEFAULT_TO.items()}
        return {name: text for name, text in self.texts().items() if text != defaults[name]}

    @property
    def address(self) -> str:
        """Returns the query string of a URL that restores these choices."""
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
        sizes += [f"kv_seq={parse_tokens(self.kv_seq)}"] if self.kv_seq else []
        passes = "" if self.pass_ == "forward" else f", pass_={self.pass_!r}"
        return (
            "import ringloom as rl\n\n"
            f"work = rl.Workload(seq={parse_tokens(self.seq)}, {', '.join(sizes)})\n"
            f"plan = rl.plan({self.schedule!r}, work, ranks={self.ranks}{passes})\n"
            f"result = rl.simulate(plan, {self.hardware!r}, rl.{self.scenario.python})\n"
            "print(result)"
        )


def from_scenario(scenario: Scenario, **choices: Any) -> Choices:
    """Returns choices with a scenario; raises RingloomError if the page has no control for it."""
    values = {field.name: getattr(scenario, field.name) for field in fields(Scenario)}
    values["speeds"] = scenario.speed_factors
    texts = {name: text_of(values.pop(key)) for name, key in SCENARIO.items()}
    texts["overlap"] = _text(values.pop("overlap"))
    if unknown := [name for name, value in values.items() if value != getattr(Scenario, name)]:
        raise RingloomError(f"the page has no {', '.join(unknown)}")
    return from_query(texts | {name: _text(value) for name, value in choices.items()})


def entries(query: Mapping[str, str]) -> dict[str, str]:
    """Returns the text of each control for a URL, even if it is invalid."""
    defaults = Choices().texts()
    for name, source in DEFAULT_TO.items():
        if _is_integer(query.get(source, "")):
            defaults[name] = query[source]
    return {name: query.get(name, text) for name, text in defaults.items()}


def from_query(query: Mapping[str, str]) -> Choices:
    """Returns the choices of a URL; raises ChoiceError for invalid parts."""
    texts, messages, choices = entries(query), dict[str, str](), Choices()
    by_name = dict(zip(texts, fields(Choices), strict=True))
    for name, (earlier, check) in CHECKS.items():
        try:
            if not messages.keys() & {*earlier}:
                value = {by_name[name].name: _value(texts[name], by_name[name])}
                check(choices := replace(choices, **value))
        except RingloomError as error:
            messages[name] = str(error)
    if messages:
        raise ChoiceError(messages)
    return choices


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _value(text: str, field: Any) -> Any:
    """Converts a text to the type of a field."""
    name, default = field.name.rstrip("_"), field.default
    if len(text) > LONGEST_ENTRY:
        raise RingloomError(f"{name} must have at most {LONGEST_ENTRY} characters, not {len(text)}")
    if isinstance(default, bool):
        if text not in ("on", "off"):
            raise RingloomError(f"{name} must be on or off, not {text[:40]!r}")
        return text == "on"
    if isinstance(default, int):
        if not _is_integer(text):
            raise RingloomError(f"{name} must be an integer, not {text[:40]!r}")
        return int(text)
    return text


def _is_integer(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


# ---- checks: (earlier choices that must be valid, function) per choice


def _check_name(kind: str, value: str, names: Any) -> None:
    if value not in names:
        raise RingloomError(unknown(kind, value, names))


def _check_range(name: str, value: int, most: int, entry: object = None) -> None:
    if not 1 <= value <= most:
        raise RingloomError(f"{name} must be 1 to {most}, not {entry or value}")


def _refuse_file(value: str, advice: str, characters: str = "./\\") -> None:
    if any(character in value for character in characters):
        raise RingloomError(f"a URL must not name files: {advice}")


def _check_mask(choices: Choices) -> None:
    _refuse_file(choices.mask, "write out the mask", characters="@")
    Workload(
        parse_tokens(choices.seq), parse_tokens(choices.kv_seq or choices.seq), mask=choices.mask
    )


def _check_kv_seq(choices: Choices) -> None:
    if choices.kv_seq:
        _check_range("key tokens", parse_tokens(choices.kv_seq), MOST_TOKENS, choices.kv_seq)


def _check_kv_heads(choices: Choices) -> None:
    _check_range("kv_heads", choices.kv_heads, MOST_HEADS)
    Workload(seq=1, heads=choices.heads, kv_heads=choices.kv_heads)


def _check_hardware(choices: Choices) -> None:
    _refuse_file(choices.hardware, "name a preset")
    _check_name("hardware", choices.hardware, machines())


def _check_topology(choices: Choices) -> None:
    if not choices.topology:
        return
    _refuse_file(choices.topology, "name a topology")
    if (kind := choices.topology.partition(":")[0]) not in KINDS:
        raise RingloomError(f"unknown topology {kind[:40]!r}: choose {topology_forms()}")
    _check_routes(choices, "topology")


def _check_routes(choices: Choices, name: str, *names: str) -> None:
    """Finds the routes of a choice; raises RingloomError if it contradicts earlier choices."""
    if getattr(choices, name):
        scenario = choices.scenario_of(*names, name)
        scenario.routes(hardware(choices.hardware), choices.ranks)


PLACES = "ranks", "hardware", "topology", "placement"
CHECKS: dict[str, tuple[tuple[str, ...], Callable[[Choices], object]]] = {
    "schedule": ((), lambda choices: find_schedule(choices.schedule)),
    "ranks": ((), lambda choices: _check_range("ranks", choices.ranks, MOST_RANKS)),
    "seq": ((), lambda c: _check_range("tokens", parse_tokens(c.seq), MOST_TOKENS, c.seq)),
    "kv_seq": ((), _check_kv_seq),
    "mask": (("seq", "kv_seq"), _check_mask),
    "heads": ((), lambda choices: _check_range("heads", choices.heads, MOST_HEADS)),
    "kv_heads": (("heads",), _check_kv_heads),
    "head_dim": ((), lambda choices: _check_range("head_dim", choices.head_dim, MOST_HEADS)),
    "v_head_dim": ((), lambda choices: _check_range("v_head_dim", choices.v_head_dim, MOST_HEADS)),
    "hardware": ((), _check_hardware),
    "pass": ((), lambda choices: _check_name("pass", choices.pass_, PASSES)),
    "stragglers": (("ranks",), lambda c: c.scenario_of("stragglers").speed(c.ranks)),
    "topology": (("ranks", "hardware"), _check_topology),
    "placement": (PLACES[:-1], lambda choices: _check_routes(choices, "placement", "topology")),
    "slow_links": (PLACES, lambda c: _check_routes(c, "slow_links", "topology", "placement")),
    **{name: ((), methodcaller("scenario_of", name)) for name in ("buffers", "share", "launch")},
    **dict.fromkeys(("sinks", "overlap"), ((), lambda _: None)),  # on or off: nothing to check
}

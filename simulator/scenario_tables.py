"""scenario_of(table)   a Scenario from names and values, as TOML and JSON files hold them.

overlap = false
speeds = { 3 = 0.5 }                  or one number per rank
links = { "6-7" = 0.1 }               0 or "cut" cuts a link
topology = "nodes:nics=2"             or a JSON file of links, which is read now

value_of, text_of   one value from and to a text, as on the command line and in an address:
                    3=0.5, 6=0.8      6-7=0.1, 0-1=cut      1,0,2,3
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.disk import parse_table, read
from planner.errors import RingloomError
from simulator.network.routes import ends_of, name_of
from simulator.network.topology import graph_of
from simulator.scenario import Scenario

TYPES: dict[str, tuple[type, ...]] = {
    "overlap": (bool,),
    "speeds": (dict, list),
    "links": (dict,),
    "topology": (str,),
    "buffers": (int,),  # or "plan"
    "late": (bool,),
    "share": (int, float),
    "chunk": (int,),
    "placement": (list,),  # of a rank per place
    "launch": (int, float),
}


def scenario_of(table: Mapping[str, Any]) -> Scenario:
    """Returns the scenario that a table describes.

    Raises RingloomError for names that a scenario does not have and for values of a wrong type.
    """
    values = dict[str, Any]()
    if not isinstance(table, Mapping):
        raise RingloomError(f"a scenario is an object of names and values, not {table!r:.40}")
    for name, value in table.items():
        if name not in TYPES:
            raise RingloomError(f"a scenario has no {name!r}: its values are {', '.join(TYPES)}")
        try:
            values[name] = _read(name, value)
        except (TypeError, ValueError):
            raise RingloomError(f"scenario: {name} cannot be {value!r}") from None
    if Path(path := values.get("topology", "")).is_file():
        values["topology"] = graph_of(Path(path))
    return Scenario(**values)


def _read(name: str, value: Any) -> Any:
    """Returns a value of a field; raises TypeError or ValueError for what is none."""
    if type(value) not in TYPES[name] and not (name == "buffers" and value == "plan"):
        raise TypeError
    if name == "links":
        factors = {ends_of(link): 0.0 if f == "cut" else float(f) for link, f in value.items()}
        if min(factors.values(), default=0) < 0:
            raise ValueError(value)
        return factors
    if name == "speeds" and isinstance(value, dict):
        return {int(rank): float(factor) for rank, factor in value.items()}
    return tuple(map(float, value)) if name == "speeds" else value


def value_of(name: str, text: str) -> Any:
    """Returns what a text says of a field; raises RingloomError where it makes no sense."""
    entries = text.replace(",", " ").split()
    try:
        match name:
            case "speeds" | "links":
                factors = _read(name, dict(map(_pair, entries)))
                if len(factors) < len(entries):
                    raise RingloomError(f"{text[:40]!r} names a rank or a link twice")
                return factors
            case "placement":
                return [int(rank) for rank in entries]
            case "share" | "launch":
                return float(text)
            case "buffers":
                return _read(name, (int(text) if text.isdecimal() else 0) or text)
    except RingloomError:
        raise
    except (TypeError, ValueError):
        number = name in ("share", "launch")
        why = f"{name} must be a number, not" if number else f"{name} cannot be"
        raise RingloomError(f"{why} {text[:40]!r}") from None
    return text


def _pair(entry: str) -> tuple[str, str]:
    key, _, factor = entry.partition("=")
    if not factor:
        raise RingloomError(f"{entry!r} has no factor: write it as 3=0.5 or 6-7=0.1")
    return key, factor


def text_of(value: Any) -> str:
    """Returns the text of a field's value, which `value_of` reads; "" for None."""
    if isinstance(value, Mapping):
        names = (name_of(key) if isinstance(key, tuple) else key for key in value)
        return ", ".join(f"{name}={f}" for name, f in zip(names, value.values(), strict=True))
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def scenario_file(path: str | Path) -> Scenario:
    """Reads a scenario from a file; a name ending in .json is JSON, all else TOML.

    Raises RingloomError, in one line, for a file that is unreadable or is no scenario.
    """
    file, what = Path(path), f"scenario file {path}"
    return read(file, lambda content: scenario_of(parse_table(file, content)), what)

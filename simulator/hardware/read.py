"""Hardware from files: the presets that come with ringloom, and TOML or JSON files like them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import simulator.costs.terms  # noqa: F401  registers the constants that cost terms bring along
from planner.disk import parse_table, read
from planner.errors import RingloomError, unknown
from simulator.hardware.schema import Constant, Hardware

PRESETS = Path(__file__).parent / "presets"


def presets() -> tuple[str, ...]:
    """Return the names of the hardware that comes with ringloom."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def hardware(name: str | Path) -> Hardware:
    """Return a preset by its name, or the hardware that a TOML or JSON file describes.

    Raises RingloomError, in one line, for an unknown name and for a file that is unreadable or does
    not give every constant with value, source and calibrated.
    """
    if str(name) in presets():
        return load(PRESETS / f"{name}.toml")
    path = Path(name)
    if not path.is_file():
        neither = "neither a file nor one of"
        raise RingloomError(unknown("hardware", str(name), presets(), neither))
    return load(path)


def load(path: Path) -> Hardware:
    """Read and check one hardware file; a name ending in .json is JSON, all else TOML."""
    what = f"hardware file {path}: cannot be read"
    content = read(path, partial(parse_table, path), what)
    try:
        return Hardware(*_named(content, path.stem))
    except RingloomError as error:
        raise RingloomError(f"{error}; the presets {', '.join(presets())} show the form") from None


def _named(content: Any, stem: str) -> tuple[str, dict[str, Constant]]:
    if not isinstance(content, dict):
        raise RingloomError(f"hardware {stem}: sections are wanted, not {_brief(content)}")
    name = content.get("name", stem)
    if not isinstance(name, str):
        raise RingloomError(f"hardware {stem}: the name is {_brief(name)}, not a text")
    sections = {key: value for key, value in content.items() if key != "name"}
    return name, dict(_constants(name, sections))


def _constants(name: str, sections: dict[str, Any]) -> Iterator[tuple[str, Constant]]:
    for section, table in sections.items():
        if not isinstance(table, dict):
            raise RingloomError(f"hardware {name}: unknown key {section} = {_brief(table)}")
        for key, entry in table.items():
            yield f"{section}.{key}", _constant(f"hardware {name}: {section}.{key}", entry)


def _constant(where: str, entry: Any) -> Constant:
    """Read one inline table: value, source and calibrated, and range where it is given."""
    if not isinstance(entry, dict) or entry.keys() - {"range"} != {"value", "source", "calibrated"}:
        form = "{ value = ..., source = ..., calibrated = ... }"
        raise RingloomError(f"{where} must be {form}, not {_brief(entry)}")
    value, source, calibrated = entry["value"], entry["source"], entry["calibrated"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RingloomError(f"{where}: the value is {_brief(value)}, not a number")
    if not isinstance(source, str) or not source.strip():
        raise RingloomError(f"{where}: the source is {_brief(source)}, not a text")
    if not isinstance(calibrated, bool):
        raise RingloomError(f"{where}: calibrated is {_brief(calibrated)}, not true or false")
    return Constant(_finite(where, value), source, calibrated, _range(where, entry.get("range")))


def _range(where: str, ends: Any) -> tuple[float, float] | None:
    if ends is None:
        return None
    plain = isinstance(ends, list) and all(type(end) in (int, float) for end in ends)
    if not plain or len(ends) != 2:
        raise RingloomError(f"{where}: the range is {_brief(ends)}, not [low, high]")
    return _finite(where, ends[0]), _finite(where, ends[1])


def _finite(where: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise RingloomError(f"{where}: the value is too large") from None


def _brief(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."

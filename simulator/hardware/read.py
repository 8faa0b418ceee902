"""Hardware from files: the presets that come with ringloom, and TOML or JSON files like them."""

from functools import partial
from pathlib import Path
from typing import Any

import simulator.costs.terms  # noqa: F401  registers the constants that cost terms bring along
from planner.disk import parse_table, read
from planner.errors import RingloomError, unknown
from simulator.hardware.schema import Constant, Hardware

PRESETS = Path(__file__).parent / "presets"
KEYS = "value", "source", "calibrated", "range"  # of a constant


def presets() -> tuple[str, ...]:
    """Return the names of the hardware that comes with ringloom."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def hardware(name: Hardware | str | Path) -> Hardware:
    """Return a preset by its name, the hardware that a TOML or JSON file describes, or itself.

    Raises RingloomError, in one line, for an unknown name and for a file that is unreadable or does
    not give every constant with value, source and calibrated.
    """
    if isinstance(name, Hardware):
        return name
    if not isinstance(name, str | Path):
        raise RingloomError(f"hardware is a preset, a file or an rl.Hardware, not {name!r:.60}")
    if str(name) in presets():
        return load(PRESETS / f"{name}.toml")
    path = Path(name)
    if not path.is_file():
        neither = "neither a file nor one of"
        raise RingloomError(unknown("hardware", str(name), presets(), neither))
    return load(path)


def load(path: Path) -> Hardware:
    """Read and check one hardware file; a name ending in .json is JSON, all else TOML."""
    what = f"hardware file {path}"
    content = read(path, partial(parse_table, path), f"{what}: cannot be read")
    try:
        if not isinstance(content, dict):
            raise RingloomError(f"sections are wanted, not {_brief(content)}")
        name = content.pop("name", path.stem)
        if not isinstance(name, str):
            raise RingloomError(f"the name is {_brief(name)}, not a text")
        constants = dict[str, Constant]()
        for section, table in content.items():
            if not isinstance(table, dict):
                raise RingloomError(f"unknown key {section} = {_brief(table)}")
            for key, entry in table.items():
                constants[f"{section}.{key}"] = _constant(f"{section}.{key}", entry)
        return Hardware(name, constants)
    except RingloomError as error:
        form = f"the presets {', '.join(presets())} show the form"
        raise RingloomError(f"{what}: {error}; {form}") from None


def _constant(where: str, entry: Any) -> Constant:
    """Read one inline table: value, source and calibrated, and range where it is given."""
    if not isinstance(entry, dict) or entry.keys() - {"range"} != {*KEYS[:-1]}:
        form = "{ value = ..., source = ..., calibrated = ... }"
        raise RingloomError(f"{where} must be {form}, not {_brief(entry)}")
    value, source, calibrated, ends = ({"range": None, **entry}[key] for key in KEYS)
    between = isinstance(ends, list) and len(ends) == 2 and all(map(_number, ends))
    for name, given, fits, wanted in (
        ("the value", value, _number(value), "a number"),
        ("the source", source, isinstance(source, str) and bool(source.strip()), "a text"),
        ("calibrated", calibrated, isinstance(calibrated, bool), "true or false"),
        ("the range", ends, ends is None or between, "[low, high]"),
    ):
        if not fits:
            raise RingloomError(f"{where}: {name} is {_brief(given)}, not {wanted}")
    try:
        range_ = None if ends is None else (float(ends[0]), float(ends[1]))
        return Constant(float(value), source, calibrated, range_)
    except OverflowError:
        raise RingloomError(f"{where}: the value is too large") from None


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _brief(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."

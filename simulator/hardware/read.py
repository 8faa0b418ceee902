"""Hardware from files: the presets that come with ringloom, and TOML or JSON files like them."""

from functools import partial
from pathlib import Path
from typing import Any

import simulator.costs.terms  # noqa: F401  registers the constants that cost terms bring along
from planner.disk import is_file, parse_table, read
from planner.errors import RingloomError, brief, unknown
from planner.given import name as name_of
from planner.given import number
from simulator.hardware.schema import Constant, Hardware

PRESETS = Path(__file__).parent / "presets"
KEYS = "value", "source", "calibrated", "range"  # of a constant
LONGEST_SOURCE = 2000  # characters


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
        raise RingloomError(f"hardware is a preset, a file or an rl.Hardware, not {brief(name)}")
    if str(name) in presets():
        return load(PRESETS / f"{name}.toml")
    path = Path(name)
    if not is_file(path):
        neither = "neither a file nor one of"
        raise RingloomError(unknown("hardware", str(name), presets(), neither))
    return load(path)


def load(path: Path) -> Hardware:
    """Read and check one hardware file; a name ending in .json is JSON, all else TOML."""
    what = f"hardware file {path}"
    content = read(path, partial(parse_table, path), f"{what}: cannot be read")
    try:
        if not isinstance(content, dict):
            raise RingloomError(f"sections are wanted, not {brief(content)}")
        name = name_of("the name", content.pop("name", path.stem))
        constants = dict[str, Constant]()
        for section, table in content.items():
            name_of("a section", section)
            if not isinstance(table, dict):
                raise RingloomError(f"unknown key {section} = {brief(table)}")
            for key, entry in table.items():
                name_of("a constant", key)
                constants[f"{section}.{key}"] = _constant(f"{section}.{key}", entry)
        return Hardware(name, constants)
    except RingloomError as error:
        form = f"the presets {', '.join(presets())} show the form"
        raise RingloomError(f"{what}: {error}; {form}") from None


def _constant(where: str, entry: Any) -> Constant:
    """Read one inline table: value, source and calibrated, and range where it is given."""
    if not isinstance(entry, dict) or entry.keys() - {"range"} != {*KEYS[:-1]}:
        form = "{ value = ..., source = ..., calibrated = ... }"
        raise RingloomError(f"{where} must be {form}, not {brief(entry)}")
    value, source, calibrated, ends = ({"range": None, **entry}[key] for key in KEYS)
    if not isinstance(calibrated, bool):
        raise RingloomError(f"{where}: calibrated is {brief(calibrated)}, not true or false")
    if ends is not None and not (isinstance(ends, list) and len(ends) == 2):
        raise RingloomError(f"{where}: the range is {brief(ends)}, not [low, high]")
    if not name_of(f"{where}: the source", source, LONGEST_SOURCE).strip():
        raise RingloomError(f"{where}: the source is {brief(source)}, not a text")
    value = number(f"{where}: the value", value)
    low, high = ends or (value, value)
    between = number(f"{where}: the range", low), number(f"{where}: the range", high)
    return Constant(value, source, calibrated, between if ends else None)

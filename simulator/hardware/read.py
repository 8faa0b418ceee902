"""Hardware from files: the presets that come with ringloom, and TOML or JSON files like them.

h100        a chip with the kernel that emitted programs call
h100:fa3    the same chip with another kernel; also mine.toml:fa3
"""

from functools import partial
from pathlib import Path
from typing import Any

import ringloom.simulator.costs.terms  # noqa: F401  registers the constants of cost terms
from ringloom.planner.disk import is_file, parse_table, read
from ringloom.planner.errors import RingloomError, brief, unknown
from ringloom.planner.given import require_name as name_of
from ringloom.planner.given import require_number
from ringloom.simulator.hardware.schema import Constant, Hardware

PRESETS = Path(__file__).parent / "presets"
KEYS = "value", "source", "calibrated", "range"  # of a constant
LONGEST_SOURCE = 2000  # characters


def presets() -> tuple[str, ...]:
    """Returns the names of the presets."""
    return tuple(sorted(path.stem for path in PRESETS.glob("*.toml")))


def machines() -> tuple[str, ...]:
    """Returns the names of presets, and of their kernels if they have several."""
    chips = [hardware(name) for name in presets()]
    variants = (chip.kernels if len(chip.kernels) > 1 else () for chip in chips)
    return tuple(
        name
        for chip, kernels in zip(chips, variants, strict=True)
        for name in (chip.name, *(f"{chip.name}:{kernel}" for kernel in kernels))
    )


def hardware(name: Hardware | str | Path) -> Hardware:
    """Returns the hardware of a preset or of a TOML or JSON file; returns hardware unchanged.

    A name may end in a kernel, as in h100:fa3. Raises RingloomError, in one line, for an unknown
    name, and for a file that is unreadable or lacks the value, source or calibrated of a constant.
    """
    if isinstance(name, Hardware):
        return name
    if not isinstance(name, str | Path):
        raise RingloomError(f"hardware is a preset, a file or an rl.Hardware, not {brief(name)}")
    if is_file(name):
        return load(Path(name))
    chip, colon, kernel = str(name).rpartition(":") if ":" in str(name) else (str(name), "", "")
    path = PRESETS / f"{chip}.toml" if chip in presets() else Path(chip)
    if not is_file(path):
        neither = "neither a file nor one of"
        raise RingloomError(unknown("hardware", str(name), presets(), neither))
    return load(path, kernel if colon else None)


def load(path: Path, kernel: str | None = None) -> Hardware:
    """Reads and checks one hardware file: JSON if its name ends in .json, otherwise TOML.

    The default of `kernel` is the file's own choice.
    """
    title = f"hardware file {path}"
    content = read(path, partial(parse_table, path), f"{title}: cannot be read")
    try:
        if not isinstance(content, dict):
            raise RingloomError(f"the file must have sections, not {brief(content)}")
        name = name_of("the name", content.pop("name", path.stem))
        kernels, default = content.pop("kernels", {}), content.pop("kernel", "")
        if not isinstance(kernels, dict):
            raise RingloomError(f"kernels = {brief(kernels)} has no sections [kernels.NAME]")
        for key in kernels:
            name_of("a kernel", key)
        if not isinstance(default, str) or ((kernels or default) and default not in kernels):
            raise RingloomError(f"kernel = {brief(default)} is none of [kernels.NAME]")
        if kernel is not None and kernel not in kernels:
            raise RingloomError(unknown(f"kernel of {name}", kernel, tuple(kernels)))
        chosen = kernel or default
        node = content.get("node", {})
        torus = isinstance(node, dict) and "axes" in node
        kind = node.pop("kind", "torus" if torus else "switch") if isinstance(node, dict) else ""
        constants = dict[str, Constant]()
        for section, table in content.items():
            constants |= _section(name_of("a section", section), table)
        for key, table in kernels.items():  # other kernels are only checked
            attention = _section("attention", table)
            constants |= attention if key == chosen else {}
        label = name if kernel is None else f"{name}:{kernel}"
        return Hardware(label, constants, kind, chosen, tuple(kernels))  # type: ignore[arg-type]
    except RingloomError as error:
        form = f"the presets {', '.join(presets())} show the form"
        raise RingloomError(f"{title}: {error}; {form}") from None


def _section(section: str, table: Any) -> dict[str, Constant]:
    """Reads the constants of one section."""
    if not isinstance(table, dict):
        raise RingloomError(f"unknown key {section} = {brief(table)}")
    names = [f"{section}.{name_of('a constant', key)}" for key in table]
    return {k: _constant(k, entry) for k, entry in zip(names, table.values(), strict=True)}


def _constant(where: str, entry: Any) -> Constant:
    """Reads one inline table with value, source, calibrated and, optionally, range."""
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
    value = require_number(f"{where}: the value", value)
    low, high = ends or (value, value)
    limits = require_number(f"{where}: the range", low), require_number(f"{where}: the range", high)
    return Constant(value, source, calibrated, limits if ends else None)

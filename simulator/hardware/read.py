"""Hardware from files: the presets that come with ringloom, and TOML or JSON files like them.

h100        a chip with the kernel that emitted programs call
h100:fa3    with another one of its kernels; mine.toml:fa3 likewise
"""

from functools import partial
from pathlib import Path
from typing import Any

import ringloom.simulator.costs.terms  # noqa: F401  registers the constants that cost terms bring along
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
    return tuple(
        name
        for one in chips
        for name in (one.name, *(f"{one.name}:{k}" for k in one.kernels if len(one.kernels) > 1))
    )


def hardware(name: Hardware | str | Path) -> Hardware:
    """Returns the hardware of a preset, of a TOML or JSON file, or the given hardware.

    A name may end in the kernel that is meant, h100:fa3. Raises RingloomError, in one line, for an
    unknown name and for a file that is unreadable or does not give every constant with value,
    source and calibrated.
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
    """Reads and checks one hardware file; a name ending in .json is JSON, all else TOML.

    Of several kernels the file's own choice counts where none is given.
    """
    what = f"hardware file {path}"
    content = read(path, partial(parse_table, path), f"{what}: cannot be read")
    try:
        if not isinstance(content, dict):
            raise RingloomError(f"sections are wanted, not {brief(content)}")
        name = name_of("the name", content.pop("name", path.stem))
        kernels, usual = content.pop("kernels", {}), content.pop("kernel", "")
        if not isinstance(kernels, dict):
            raise RingloomError(f"kernels = {brief(kernels)} has no sections [kernels.NAME]")
        for one in kernels:
            name_of("a kernel", one)
        if not isinstance(usual, str) or ((kernels or usual) and usual not in kernels):
            raise RingloomError(f"kernel = {brief(usual)} is none of [kernels.NAME]")
        if kernel is not None and kernel not in kernels:
            raise RingloomError(unknown(f"kernel of {name}", kernel, tuple(kernels)))
        chosen = kernel or usual
        node = content.get("node", {})
        torus = isinstance(node, dict) and "axes" in node
        kind = node.pop("kind", "torus" if torus else "switch") if isinstance(node, dict) else ""
        constants = dict[str, Constant]()
        for section, table in content.items():
            constants |= _section(name_of("a section", section), table)
        for one in kernels:  # those that are not meant are checked, too
            own = _section("attention", kernels[one])
            constants |= own if one == chosen else {}
        full = name if kernel is None else f"{name}:{kernel}"
        return Hardware(full, constants, kind, chosen, tuple(kernels))  # type: ignore[arg-type]
    except RingloomError as error:
        form = f"the presets {', '.join(presets())} show the form"
        raise RingloomError(f"{what}: {error}; {form}") from None


def _section(section: str, table: Any) -> dict[str, Constant]:
    """Reads the constants of one section."""
    if not isinstance(table, dict):
        raise RingloomError(f"unknown key {section} = {brief(table)}")
    names = [f"{section}.{name_of('a constant', key)}" for key in table]
    return {k: _constant(k, entry) for k, entry in zip(names, table.values(), strict=True)}


def _constant(where: str, entry: Any) -> Constant:
    """Reads one inline table: value, source and calibrated, and range where it is given."""
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
    between = (
        require_number(f"{where}: the range", low),
        require_number(f"{where}: the range", high),
    )
    return Constant(value, source, calibrated, between if ends else None)

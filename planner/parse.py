"""Parses a schedule as written on the command line, and the JSON of a mask file.

schedule ::= NAME(":" KEY "=" VALUE)*
"""

import re
from typing import Any

from ringloom.planner import disk
from ringloom.planner.errors import PlanError, brief
from ringloom.planner.given import parse_tokens


def parse_schedule(text: str) -> tuple[str, dict[str, int | str]]:
    """Returns the name and parameters in a text such as `striped` or `usp:ulysses=2:ring=4`."""
    name, *settings = text.strip().split(":")
    if not re.fullmatch(r"[\w.+-]+", name):
        raise PlanError(
            f"{brief(text)} does not start with a schedule name, as in striped:grain=16"
        )
    parameters: dict[str, int | str] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if not key.isidentifier() or not value:
            raise PlanError(f"{brief(setting)} in {brief(text)} is not a setting such as grain=16")
        if key in parameters:
            raise PlanError(f"{key} is set twice in {brief(text)}")
        parameters[key] = (
            parse_tokens(value) if re.fullmatch(r"[0-9]{1,18}[kKM]?", value) else value
        )
    return name, parameters


def from_json(text: str, expected: str) -> Any:
    """Returns the value of a JSON text; for invalid JSON, raises PlanError with `expected`."""
    try:
        return disk.from_json(text, disk.DEFAULT_LIMIT)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"not JSON: {error}; {expected}") from None

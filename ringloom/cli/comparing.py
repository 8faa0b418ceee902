"""Options of commands that compare schedules, and the comparison that they describe."""

from collections.abc import Callable
from typing import Any

from ringloom.cli.options import (
    Function,
    hardware_option,
    overlap_option,
    schedules_option,
    workload,
    workload_options,
)
from ringloom.cli.progress import progress
from ringloom.comparison import Comparison, compare


def comparison_options(schedules: str | None) -> Callable[[Function], Function]:
    """The options of a comparison, with a command's own schedules; None: all that matter."""
    options = workload_options(), hardware_option, schedules_option(schedules), overlap_option

    def decorate(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def compared(given: dict[str, Any], **more: Any) -> Comparison:
    """Compare schedules as the options of `comparison_options` say."""
    work, ranks = workload(given)
    chosen = {name: given[name] for name in ("hardware", "schedules", "pass_", "overlap")}
    return compare(work, ranks, **chosen, track=progress, **more)

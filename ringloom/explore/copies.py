"""The choices as a command and as Python, to be copied."""

import shlex

from planner.parse import tokens
from ringloom.explore.choices import Choices


def command(choices: Choices) -> str:
    """Returns the command that compares the chosen schedule with the ring."""
    words = ["ringloom", "compare", "--schedules", choices.schedule]
    options = {"pass": "--pass", "stragglers": "--straggler", "slow_links": "--slow-link"}
    ranks = {"ranks": str(choices.ranks), "seq": choices.seq}
    for name, text in (ranks | choices.query()).items():
        option = options.get(name, f"--{name.replace('_', '-')}")
        match name:
            case "schedule":
                pass
            case "overlap":
                words.append("--no-overlap")
            case "sinks":
                words.append("--sinks")
            case _:
                words += [option, text]
    return shlex.join(words)


def python(choices: Choices) -> str:
    """Returns lines of Python that plan and predict the chosen schedule."""
    names = ("heads", "kv_heads", "v_head_dim", "sinks", "mask")
    sizes = [f"{name}={getattr(choices, name)!r}" for name in names]
    passes = "" if choices.pass_ == "forward" else f", pass_={choices.pass_!r}"
    return "\n".join(
        (
            "import ringloom as rl",
            "",
            f"work = rl.Workload(seq={tokens(choices.seq)}, {', '.join(sizes)})",
            f"plan = rl.plan({choices.schedule!r}, work, ranks={choices.ranks}{passes})",
            f"result = rl.simulate(plan, {choices.hardware!r}, rl.{choices.scenario.python})",
            "print(result)",
        )
    )

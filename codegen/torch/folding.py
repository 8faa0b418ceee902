"""Shorter text of the same statements: those that repeat become a loop, equal ones share an `if`.

    a(x[0])               a(x[0])              if rank < 2:         if rank < 2 or rank > 5:
    b(x[0])               for n in range(2):       a()                  a()
    a(x[1])       -->         b(x[n])          if rank > 5:    -->
    b(x[1])                   a(x[n + 1])          a()
    a(x[2])               c()
    c()

Only numbers that stand alone in brackets may count on, all else has to be the same.
"""

import re
from collections.abc import Sequence

from codegen.reflow import WIDTH

NUMBER = re.compile(r"(?<=\[)\d+(?=\])")
Texts = list[str]  # of statements, with the lines further in


def statements(lines: Sequence[str]) -> Texts:
    """The statements that lines are; an `elif` or `else` belongs to its `if`."""
    made = Texts()
    for line in lines:
        within = line[margin(lines[0])] == " " or line.lstrip().startswith(("elif ", "else:"))
        if within:
            made[-1] += f"\n{line}"
        else:
            made.append(line)
    return made


def margin(line: str) -> int:
    """The number of blanks that a line begins with."""
    return len(line) - len(line.lstrip(" "))


def looped(lines: Sequence[str]) -> list[str]:
    """The lines with the repetition as a loop that leaves fewest of them, if any does."""
    texts, best = statements(lines), [*lines]
    for first in range(len(texts)):
        for size in range(1, (len(texts) - first) // 2 + 1):
            parts = [texts[n : n + size] for n in range(first, len(texts), size)]
            loop, count = repeated(["\n".join(part) for part in parts])
            made = "\n".join([*texts[:first], *loop, *texts[first + size * count :]]).split("\n")
            if count > 1 and len(made) < len(best) and max(map(len, loop)) <= WIDTH:
                best = made
    return best


def repeated(rounds: Sequence[str]) -> tuple[list[str], int]:
    """A loop of the first rounds, whose numbers stay or rise by one, and of how many."""
    before, now = ([*map(int, NUMBER.findall(text))] for text in rounds[:2])
    rises = [b - a for a, b in zip(before, now, strict=False)]
    count = 1
    while count < len(rounds) and rounds[count] == counted(rounds[0], rises, count):
        count += 1
    body = counted(rounds[0], rises, None).split("\n")
    head = f"{' ' * margin(body[0])}for n in range({count}):"
    return [head, *(f"    {line}" for line in body)], count if {*rises} <= {0, 1} else 1


def counted(text: str, rises: Sequence[int], n: int | None) -> str:
    """The text with numbers higher by n times their rises; None: by those of a loop's variable."""
    left = iter(rises)

    def number(match: re.Match[str]) -> str:
        k, rise = int(match[0]), next(left, 0)
        if n is None and rise:
            return f"n + {k}" if k else "n"
        return str(k + rise * (n or 0))

    return NUMBER.sub(number, text)


def joined(lines: Sequence[str]) -> list[str]:
    """The lines with one `if` for several of one body, of which a plan asks once at a time."""
    made, places = list[str](), dict[str, int]()  # of bodies
    for text in statements(lines):
        head, _, body = text.partition("\n")
        if not head.lstrip().startswith("if "):
            places.clear()
        elif body in places:
            one, other = (x.strip()[3:-1] for x in (made[places[body]].partition("\n")[0], head))
            both = " or ".join(f"({x})" if " and " in x else x for x in (one, other))
            if len(both) + margin(head) + 4 <= WIDTH:
                made[places[body]] = f"{' ' * margin(head)}if {both}:\n{body}"
                continue
        elif "\n" not in body:
            places[body] = len(made)
        made.append(text)
    return "\n".join(made).split("\n") if made else []

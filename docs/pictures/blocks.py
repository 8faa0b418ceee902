"""Draws blocks.svg: attention over three blocks of keys, merged from parts."""

from shapes import INK, cell, drawing, line, text

PARTS = ("keys 0-3", "keys 4-7", "keys 8-11")


def picture() -> str:
    """Returns blocks of keys on top and their partial results below, merged two by two."""
    shapes, left, width = [], 60, 130
    for number, part in enumerate(PARTS):
        x = left + number * (width + 15)
        shapes += [
            cell(x, 20, width, 34, part, number),
            line([(x + width / 2, 58), (x + width / 2, 78)]),
        ]
        shapes.append(cell(x + 15, 80, width - 30, 34, f"o{number + 1}, lse{number + 1}", number))
    first, second, third = (left + width / 2 + number * (width + 15) for number in range(3))
    one, two = (first + second) / 2, (first + second + 2 * third) / 4
    shapes += [line([(first, 118), (one, 145)]), line([(second, 118), (one, 145)])]
    shapes.append(cell(one - 70, 146, 140, 30, "merge", None))
    shapes += [line([(one, 178), (two, 203)]), line([(third, 118), (two, 203)])]
    shapes.append(cell(two - 70, 204, 140, 30, "merge", None))
    shapes.append(text(two + 80, 224, "= attention over all keys", 13, fill=INK))
    shapes.append(text(52, 42, "scores", 13, "end"))
    shapes.append(text(52, 102, "parts", 13, "end"))
    return drawing(560, 246, "Attention over three blocks of keys, merged from parts", shapes)

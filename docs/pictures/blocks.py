"""Draws blocks.svg: attention over three blocks of keys, merged from partial results."""

from shapes import INK, cell, drawing, line, text

PARTS = ("keys 0-3", "keys 4-7", "keys 8-11")


def picture() -> str:
    """Returns blocks of keys, their partial results below, and two merges."""
    shapes, left, width = [], 60, 130
    for number, part in enumerate(PARTS):
        x = left + number * (width + 15)
        shapes += [
            cell(x, 20, width, 34, part, number),
            line([(x + width / 2, 58), (x + width / 2, 78)]),
        ]
        shapes.append(cell(x + 15, 80, width - 30, 34, f"o{number + 1}, lse{number + 1}", number))
    first, second, third = (left + width / 2 + number * (width + 15) for number in range(3))
    merge_1, merge_2 = (first + second) / 2, (first + second + 2 * third) / 4
    shapes += [line([(first, 118), (merge_1, 145)]), line([(second, 118), (merge_1, 145)])]
    shapes.append(cell(merge_1 - 70, 146, 140, 30, "merge", None))
    shapes += [line([(merge_1, 178), (merge_2, 203)]), line([(third, 118), (merge_2, 203)])]
    shapes.append(cell(merge_2 - 70, 204, 140, 30, "merge", None))
    shapes.append(text(merge_2 + 80, 224, "= attention over all keys", 13, fill=INK))
    shapes.append(text(52, 42, "scores", 13, "end"))
    shapes.append(text(52, 102, "parts", 13, "end"))
    return drawing(
        560, 246, "Attention over three blocks of keys, merged from partial results", shapes
    )

"""Draws search.svg: two assignments of the ten cells of a causal mask to four ranks."""

from shapes import cell, drawing, text

SIZE = 52
OWNERS = {(q, kv): q for q in range(4) for kv in range(q + 1)}
SHARED = {**OWNERS, (3, 0): 0, (3, 1): 1, (2, 0): 0}


def square(owner: dict[tuple[int, int], int], x: float, y: float, title: str) -> list[str]:
    """Returns cells labelled by rank, with the loads below; a diagonal cell counts half."""
    load = [0.0] * 4
    shapes = [text(x, y - 12, title, 14)]
    for (q, kv), rank in owner.items():
        load[rank] += 0.5 if q == kv else 1
        shapes.append(cell(x + kv * SIZE, y + q * SIZE, SIZE - 4, SIZE - 4, f"rank {rank}", rank))
    loads = ", ".join(f"{value:g}" for value in load)
    return [*shapes, text(x, y + 4 * SIZE + 16, f"loads {loads}")]


def picture() -> str:
    """Returns every cell on the owner of its queries, and the best assignment."""
    shapes = [
        *square(OWNERS, 10, 36, "ring: on the owner of the queries"),
        *square(SHARED, 275, 36, "searched"),
    ]
    return drawing(
        515,
        36 + 4 * SIZE + 30,
        "Ranks that attend the cells of four blocks: ring and best assignment",
        shapes,
    )

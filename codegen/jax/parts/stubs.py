"""Names that parts use and that the printed texts of a program define: for type checkers only."""

from typing import Any

allowed: Any
backward: Any
forward: Any
positions: Any
kv_positions: Any
shard: Any
shapes: Any
share_of: Any
unshard: Any
QUERIES: Any
KEYS: Any
layout_positions: Any
our_layer: Any

"""Old public names that work for one more release."""

from operator import attrgetter

from ringloom.simulator.prediction import Prediction
from ringloom.simulator.scenario import Scenario

NAMES = {  # old name in `rl`: current name
    "Held": "InitialCopy",
    "balance": "balanced_layout",
    "derive": "run_passes",
    "direct": "shortcut_copies",
    "homeward": "shortcut_sums",
    "tables": "mask_tables",
}
ATTRIBUTES: tuple[tuple[type, str, str], ...] = (  # class, old name, current name
    (Prediction, "outside", "bound_inapplicable_reason"),
    (Prediction, "own_limit", "plan_lower_bound"),
    (Scenario, "factors", "speed_factors"),
)

for _type, _old, _new in ATTRIBUTES:
    setattr(_type, _old, property(attrgetter(_new)))

"""The one exception of the project; its texts carry the numbers and are tested."""


class PlanError(ValueError):
    """A plan, mask, partition or workload that cannot mean anything."""

"""The exceptions of the project; their texts carry the numbers and are tested."""


class RingloomError(ValueError):
    """Bad input of any kind: a plan, a file, a table of numbers, hardware, an address."""


class PlanError(RingloomError):
    """A plan, mask, partition or workload that cannot mean anything."""

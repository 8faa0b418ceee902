"""The process groups of a program whose ranks are in a row."""

from torch.distributed import ProcessGroup


def groups_of(group: ProcessGroup) -> tuple[ProcessGroup]:
    """The groups in which ranks exchange."""
    return (group,)

"""Hardware: chips, their memory and their links, as constants with sources."""

from ringloom.simulator.hardware.read import hardware, load, machines, presets
from ringloom.simulator.hardware.schema import Constant, Hardware, Link

__all__ = ["Constant", "Hardware", "Link", "hardware", "load", "machines", "presets"]

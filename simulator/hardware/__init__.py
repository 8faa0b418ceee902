"""Hardware: chips, their memory and their links, as constants with sources."""

from simulator.hardware.read import hardware, load, machines, presets
from simulator.hardware.schema import Constant, Hardware, Link

__all__ = ["Constant", "Hardware", "Link", "hardware", "load", "machines", "presets"]

"""Passes: Plan -> Plan, each exact for every plan it accepts, each verified after it ran."""

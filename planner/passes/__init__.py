"""Compiler passes: Plan -> Plan, exact for every plan they accept; results are verified."""

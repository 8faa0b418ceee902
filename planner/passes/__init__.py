"""Compiler passes, Plan -> Plan. The result of a pass on an exact plan is exact, and verified."""

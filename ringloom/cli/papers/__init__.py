"""Commands about published formulas, tables and figures."""

"""The operators' numbers: against NumPy, at special values, in units of the last place."""

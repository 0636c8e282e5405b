"""Calls, keys, registration and what is removed again, of dispatchers."""

"""Schemas: their text, their objects, and functions whose annotations become one."""

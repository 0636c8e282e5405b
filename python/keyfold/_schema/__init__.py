"""Schemas: an operator's as an object, and a function's as text."""

from keyfold._schema._objects import Schema, SchemaArgument, SchemaReturn

__all__ = ["Schema", "SchemaArgument", "SchemaReturn"]

"""Operators made of one expression: values, shapes, derivatives, CUDA C."""

"""The demo, `python -m keyfold demo`: read `tutorial.py` here from top to bottom."""

from keyfold._demo.tutorial import run

__all__ = ["run"]

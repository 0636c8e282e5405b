"""Graphs of cuDNN."""

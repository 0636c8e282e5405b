"""Threads, at work, at exit and in the pool."""

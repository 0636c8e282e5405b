"""Helpers of tests in several folders that aren't fixtures."""

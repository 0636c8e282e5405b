"""Devices and backends: memory, queued work, removal."""

"""Devices that trainer and engines use in turns."""

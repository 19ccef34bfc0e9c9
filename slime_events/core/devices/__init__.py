"""Devices that the trainer and the engines of a run use in turns."""

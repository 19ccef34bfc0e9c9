"""The traces of a past run, computed from its log."""

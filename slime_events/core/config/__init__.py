"""Settings: one small frozen struct per component, flags and TOML on top of them.

No namespace object is handed around. A field's flag is its name with dashes; the description is its help text.
"""

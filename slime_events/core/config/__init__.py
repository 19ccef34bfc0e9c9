"""Settings: a frozen struct per component, with flags and TOML for it. A field's flag is its name with dashes."""

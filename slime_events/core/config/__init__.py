"""Settings: a frozen struct per component, set by flags and TOML. A field's flag is its name with dashes."""

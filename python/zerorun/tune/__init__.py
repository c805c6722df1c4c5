"""Searches for the settings of a configuration that train fastest (`zerorun tune`)."""

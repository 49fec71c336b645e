"""The lint of a launch: rules over launch blocks, by the catalogue."""

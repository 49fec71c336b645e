"""What is wrong with a launch: rules over launch blocks, by the catalogue."""

"""The parts of the layer, a file each: what it is in the config, what it wants of the shapes, and the steps it records."""

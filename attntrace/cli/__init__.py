"""The command line. One file a command; each reads its options, calls the library and writes. No maths, no formatting."""

"""Arrays that lie in files, read in two stages: first look, then take.

`arrays.open_array` reads the header and says what shape and dtype the numbers would have, so that a caller can refuse them
while nothing is allocated; `ArrayFile.read` brings the numbers. Files are untrusted: none can execute code, hang the
reader, or make it take more memory than the bytes that are really there.
"""

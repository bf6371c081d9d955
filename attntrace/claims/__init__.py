"""What somebody claims the numbers are, read from wherever it was written down.

`read` makes claims of a file, a text or a mapping; `match` finds the steps of a trace that they are about. Claims are hostile
input: nothing in them is executed, and how much is read is bounded.
"""

from attntrace.claims.claim import Claim, Reading
from attntrace.claims.matching import match
from attntrace.claims.reading import read, read_expect, read_file, read_mapping, read_text

__all__ = ["Claim", "Reading", "match", "read", "read_expect", "read_file", "read_mapping", "read_text"]

"""One number as text: what it says, and to how many digits."""

from __future__ import annotations

import math
import re

NUMBER = re.compile(r"[-+]?(?:([0-9]+)(?:(\.)([0-9]*))?|\.([0-9]+))(?:[eE]([-+]?[0-9]{1,4}))?")
LONGEST = 400  # characters: the largest float64 has 309 digits
ZEROS_CUT = 2  # decimals that "1." stands for: NumPy and torch cut zeros, and nobody prints fewer than two decimals
BLANK, SPECIAL = -2, -1  # in place of a number of decimals
MINUS = {ord(c): "-" for c in "\u2212\u2012\u2013\ufe63\uff0d"}
BLANKS = re.compile(r"[?]+|_+|[-\u2012-\u2015\u2212]|~|null|none|blank|n/?a|", re.IGNORECASE)
SPECIALS = {
    **dict.fromkeys(("inf", "+inf", "infinity", "+infinity", ".inf", "+.inf", "∞", "+∞"), math.inf),
    **dict.fromkeys(("-inf", "-infinity", "-.inf", "-∞"), -math.inf),
    **dict.fromkeys(("nan", ".nan", "-nan", "+nan"), math.nan),
    "true": 1.0,
    "false": 0.0,
}
ELLIPSES = ("…", "...", "⋯", "⋮", "⋱")
PRINTED = "np.set_printoptions(threshold=np.inf) or torch.set_printoptions(profile='full')"

Reading = tuple[float, int, int, int]


def read(text: str) -> Reading:
    """The value, its decimals, its exponent, its significant digits; NaN and `BLANK` for a cell that was left empty.

    Raises ValueError, whose text is a sentence about the cell.
    """
    match = NUMBER.fullmatch(text)
    if match is None:
        return unusual(text)
    if len(text) > LONGEST:
        raise ValueError(f"is a number of {len(text)} characters, expected at most {LONGEST}")
    whole, point, fraction, bare, exponent = match.groups()
    digits = bare or fraction or ""
    decimals = len(digits) if digits or not point else ZEROS_CUT
    value = float(text)
    if value - value != 0:
        raise ValueError("is beyond 1.8e308, the largest number of float64")
    return value, decimals, int(exponent or 0), len(((whole or "") + digits).lstrip("0"))


def unusual(text: str) -> Reading:
    """What is no number as Python writes it: other minus signs, infinities, blanks."""
    stripped = text.strip()
    if BLANKS.fullmatch(stripped):
        return math.nan, BLANK, 0, 0
    plain = stripped.translate(MINUS)
    if plain != text and NUMBER.fullmatch(plain):
        return read(plain)
    special = SPECIALS.get(plain.lower())
    if special is not None:
        return special, SPECIAL, 0, 0
    if any(sign in stripped for sign in ELLIPSES):
        raise ValueError(f"is an ellipsis: {elided()}")
    raise ValueError(f'is "{clipped(stripped)}", expected a number')


def elided(cure: str = PRINTED) -> str:
    return f"numbers are left out (…): print it whole, with {cure}"


def is_number(text: str) -> bool:
    """Whether a cell holds a number, an infinity or NaN."""
    plain = text.strip().translate(MINUS)
    return NUMBER.fullmatch(plain) is not None or plain.lower() in SPECIALS


def is_cell(text: str) -> bool:
    """Whether a cell holds a number or is marked as blank."""
    return is_number(text) or (bool(text.strip()) and BLANKS.fullmatch(text.strip()) is not None)


def is_gap(text: str) -> bool:
    return text.strip() in ELLIPSES


def clipped(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"

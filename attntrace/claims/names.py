"""What people call the steps of attention, and which step they may mean.

A name is compared without its case, punctuation and plural. Where a name is used for several steps, all are candidates, and
`match` lets shapes and numbers choose. A new name is a word in the table below.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache

from attntrace.claims.claim import Index

LONGEST = 200  # characters of a name that are looked at
WORDS = 8  # of a name in words; a longer line is a sentence

# The steps that a name may mean, the likeliest first, and the names.
NAMES: tuple[tuple[str, str], ...] = (
    ("x", "x; input; inputs; input embeddings; embeddings; token embeddings; word embeddings; hidden states; e"),
    ("x_kv", "x_kv; encoder output; encoder hidden states; key value input"),
    ("q", "q; query; queries; query projection; projected queries; q projection; q proj; x wq; x w_q; xwq; q states"),
    ("k", "k; key; keys; key projection; projected keys; k projection; k proj; x wk; x w_k; xwk; k states"),
    ("v", "v; value; values; value projection; projected values; v projection; v proj; x wv; x w_v; xwv; v states"),
    ("w_q", "w_q; wq; w query; query weight; q weight; q_proj.weight; w_query.weight; q_proj; weight q; weight query"),
    ("w_k", "w_k; wk; w key; key weight; k weight; k_proj.weight; w_key.weight; weight k; weight key"),
    ("w_v", "w_v; wv; w value; value weight; v weight; v_proj.weight; w_value.weight; weight v; weight value"),
    ("w_o", "w_o; wo; w out; w output; output weight; o_proj.weight; out_proj.weight; output projection weight; w0"),
    ("w_qkv", "w_qkv; wqkv; qkv weight; in_proj_weight; c_attn.weight; qkv.weight"),
    ("q_norm", "q_norm; normalised q; normalized q; normalised queries; normalized queries; normed q"),
    ("k_norm", "k_norm; normalised k; normalized k; normalised keys; normalized keys; normed k"),
    ("q_rot", "q_rot; q rotated; rotated q; rotated queries; rotated query; q rope; rope q; q embed; q after rope; q'"),
    ("k_rot", "k_rot; k rotated; rotated k; rotated keys; rotated key; k rope; rope k; k embed; k after rope; k'"),
    ("k_all", "k_all; all keys; cached keys; k cache; key cache; present key; keys with cache"),
    ("v_all", "v_all; all values; cached values; v cache; value cache; present value; values with cache"),
    ("k_shared", "k_shared; repeated keys; repeated k; k repeated; expanded keys; expanded k; shared keys"),
    ("v_shared", "v_shared; repeated values; repeated v; v repeated; expanded values; expanded v; shared values"),
    (
        "scores",
        "scores; score; raw scores; raw attention scores; unscaled scores; dot products; dot product; raw dot products; s; "
        "q k t; qkt; qk; q @ k t; q dot k t; unnormalised scores; unnormalized scores; scores before scaling",
    ),
    (
        "scores scaled",
        "attention scores; attention score; attn scores; attn score; self attention scores; similarity; similarities; "
        "similarity scores; alignment scores; energy; energies; compatibility; score matrix; scores matrix; qk scores",
    ),
    (
        "scaled",
        "scaled; scaled scores; scaled score; scaled attention scores; scaled attn scores; scores scaled; scaled dot products; "
        "scaled qkt; scaled logits; s'; s scaled; qkt / √d_k; qkt / √d; qkt / sqrt(d_k); qkt / sqrt(d); qkt / √dk; "
        "s / √d_k; scores / √d_k; scores / sqrt(d_k); scores after scaling",
    ),
    ("capped", "capped; capped scores; softcapped; soft capped; softcapped scores; soft capped scores; softcap"),
    ("alibi", "alibi; alibi bias; alibi biases; linear biases; position bias"),
    ("biased", "biased; biased scores; scores with bias; scores plus bias; scores + alibi; scores with alibi"),
    ("mask", "mask; attention mask; attn mask; causal mask; m"),
    ("masked", "masked; masked scores; masked attention scores; masked attn scores; masked logits; scores after mask; s''"),
    (
        "masked biased capped scaled scores",
        "logits; attention logits; attn logits; pre softmax; pre softmax scores; softmax input; scores before softmax; "
        "before softmax; input of softmax; final scores",
    ),
    (
        "weights",
        "weights; weight; attention weights; attention weight; attn weights; attn weight; attn; attentions; a; alpha; α; "
        "p; prob; probs; probabilities; attn probs; attention probs; attention probabilities; softmax; softmaxed; softmax out; "
        "softmax output; softmax scores; softmax weights; softmax(scores); attention matrix; attention map; attention pattern; "
        "attention distribution; normalised scores; normalized scores; normalised attention; normalized attention; "
        "normalised weights; normalized weights; self attention weights; after softmax; scores after softmax; attn matrix",
    ),
    ("weights output context", "attention; self attention; attention result"),
    (
        "dropped",
        "dropped; dropped weights; weights after dropout; attention weights after dropout; after dropout; dropout; "
        "attn after dropout; attention after dropout; dropped attention weights",
    ),
    (
        "context output",
        "context; contexts; context vectors; context vector; context matrix; ctx; c; head output; head outputs; "
        "per head output; attention heads; attn output; attn out; attention output; attention outputs; weighted sum; "
        "weighted sums; weighted values; sum of values; a v; av; weights v; weights values; sdpa; "
        "scaled dot product attention; scaled dot product attention output; softmax(qkt) v",
    ),
    ("concat", "concat; concatenated; concatenated heads; merged heads; merged; heads concatenated; concatenation"),
    (
        "output context",
        "output; outputs; out; outs; y; z; o; h; final output; final outputs; result; results; final; layer output; "
        "attention layer output; self attention output; mha output; multi head output; multi head attention output; "
        "multihead output; contextualised embeddings; contextualized embeddings; contextual embeddings; new embeddings; "
        "updated embeddings; output vectors; attention(q,k,v); y out; projected output; output projection; answer",
    ),
)
FILLERS = {
    *("the", "my", "our", "matrix", "matrice", "tensor", "array", "vector", "of", "for", "each", "all", "computed"),
    *("calculated", "printed", "are", "is", "these", "here", "and", "step", "part", "torch", "numpy", "print", "shape", "self"),
}

# Words that a longer name may hold among others, words that it may not, and the steps it then may mean; the first counts.
RULES: tuple[tuple[str, str, str], ...] = (
    ("softmax before", "", "masked biased capped scaled scores"),
    ("softmax pre", "", "masked biased capped scaled scores"),
    ("softmax v", "", "context output"),
    ("softmax value", "", "context output"),
    ("dropout weight", "before", "dropped"),
    ("softmax", "", "weights"),
    ("masked score", "weight output", "masked"),
    ("masked logit", "weight output", "masked"),
    ("scaled score", "weight output before", "scaled"),
    ("raw score", "weight output", "scores"),
    ("unscaled score", "weight output", "scores"),
    ("attention weight", "output value", "weights"),
    ("attn weight", "output value", "weights"),
    ("attention probability", "", "weights"),
    ("score", "weight output", "scores scaled"),
    ("context vector", "", "context output"),
    ("head output", "multi", "context output"),
    ("output", "before softmax projection weight expected sample console terminal program code", "output context"),
)

GREEK = {"α": " alpha ", "√": " sqrt ", "·": " ", "×": " ", "⋅": " ", "′": "'", "’": "'", "‘": "'", "@": " "}
COMMANDS = re.compile(r"\\(?:mathbf|boldsymbol|textbf|mathrm|text|operatorname|mathit|cdot|times|left|right|quad)\b ?|\\[,;! ]")
HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")
INDEX = re.compile(r"\[\s{0,9}(\d{1,9}(?:\s{0,9},\s{0,9}\d{1,9}){0,5})\s{0,9}\](.{0,200})$")
AXES = re.compile(r"(?:[ ,(]{1,3}\w{1,60} \d{1,9}\)?)*\s*")  # behind an index, its meaning
PART = re.compile(r"\b(head|batch)(?: item)?[ _]?#?(\d{1,9})\b(?![.\d])", re.IGNORECASE)
ESCAPED = re.compile(r"\\([\\`*\[\]~=_#])")
NUMBERING = re.compile(r"^\s*(?:\(?\d{1,3}[.):]\s+|step \d{1,3}\s*[.:)\-–—]?\s*|[-*•]\s+)+", re.IGNORECASE)
TAIL = re.compile(r"\s*[\[({][^\[\](){}]{0,100}[\])}]\s*$")


def tidy(words: str) -> str:
    """A name as it is kept and shown: without the signs around it that belong to the text and not to it."""
    words = ESCAPED.sub(r"\1", words[:LONGEST]).strip().strip('*`"“”„:=,;| \t{(').strip()
    while len(words) > 1 and words[0] == words[-1] == "'":
        words = words[1:-1].strip()
    match = re.fullmatch(r"print\((.{0,150}?)\)?", words)
    words = match[1].strip("\"'` ") if match else words
    words = words.replace("{[}", "[").replace("{]}", "]").rstrip(":= ")
    return words if any(map(str.isalnum, words)) else ""


def split(called: str) -> tuple[str, Index]:
    """A name and the part of the step that it is about: `weights[0, 1]`, `Head 1 weights`."""
    index: list[tuple[str, int]] = []
    if (match := INDEX.search(called[:LONGEST])) and AXES.fullmatch(match[2]):
        return called[: match.start()].strip(), tuple(("", int(i)) for i in match[1].split(","))
    for match in PART.finditer(called[:LONGEST]):
        index.append((f"{match[1].lower()} number", int(match[2])))
    if not index:
        return called, ()
    return PART.sub(" ", called[:LONGEST]).strip(" ,()[]:-–—_"), tuple(index)


@lru_cache(4096)
def words_of(called: str) -> tuple[str, ...]:
    """The words of a name: lower case, singular, without markup."""
    text = unicodedata.normalize("NFKC", COMMANDS.sub(" ", called[:LONGEST]))
    for sign, meaning in GREEK.items():
        text = text.replace(sign, meaning)
    text = HUMPS.sub(" ", text.replace("T", "T ") if re.search(r"K\s*[\^.]?\s*\{?T", text) else text)
    return tuple(singular(word) for word in re.findall(r"[^\W\d_]+|\d+|'+", text.lower()))


def singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us")) else word


def key(called: str) -> str:
    return "".join(words_of(called))


@cache
def table() -> dict[str, tuple[str, ...]]:
    """From every name to the steps that it may mean."""
    result: dict[str, tuple[str, ...]] = {}
    for steps, names in NAMES:
        for name in names.split(";"):
            result.setdefault(key(name), tuple(steps.split()))
    return result


def candidates(called: str, steps: Collection[str] = (), symbols: Iterable[tuple[str, str]] = ()) -> tuple[str, ...]:
    """The steps that a name may mean, the likeliest first; none when it is not known.

    `steps` are those that there are, `symbols` pairs of what the formulas call a step, and the step.
    """
    folded = called.strip().lower().replace("-", "_").replace(" ", "_")
    exact = [step for step in steps if step.lower() == folded]
    if exact:
        return tuple(exact)
    for form in forms(called):
        if not (found := key(form)):
            continue
        if named := [step for step in steps if key(step) == found]:
            return tuple(named)
        if named := [step for symbol, step in symbols if key(symbol) == found]:
            return tuple(dict.fromkeys(named))
        if found in table():
            return table()[found]
    return by_rule(called)


def forms(called: str) -> Iterator[str]:
    """A name, and what is left of it without numbering, what stands in brackets at its end, and words that say nothing."""
    yield called
    bare = NUMBERING.sub("", called)
    yield bare
    yield TAIL.sub("", bare)
    for part in bare.split("=")[:3]:
        yield TAIL.sub("", part)
        content = [word for word in words_of(part) if word not in FILLERS]
        if len(content) <= WORDS:
            yield " ".join(content)


def by_rule(called: str) -> tuple[str, ...]:
    words = {word for word in words_of(NUMBERING.sub("", called)) if word.isalpha()}
    if len(words) > WORDS:
        return ()
    for needed, without, steps in RULES:
        if words.issuperset(needed.split()) and words.isdisjoint(without.split()):
            return tuple(steps.split())
    return ()


def known(called: str, steps: Collection[str] = ()) -> bool:
    """Whether a name means a step, or a part of one."""
    return bool(candidates(split(called)[0], steps))

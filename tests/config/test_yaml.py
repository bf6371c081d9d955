"""YAML 1.2 scalars, places, and every way a text can be wrong."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from attntrace.config import yaml
from attntrace.config.yaml import Document, parse, parse_value
from attntrace.errors import AttnTraceError, Fault

NAN = object()  # stands for a value that does not equal itself

# (as written, as read): sections 10.2.1 and 10.3.2 of YAML 1.2.2, and the words that YAML 1.1 took for something else.
SCALARS: list[tuple[str, Any]] = [
    *[(word, None) for word in ("null", "Null", "NULL", "~", "")],
    *[(word, True) for word in ("true", "True", "TRUE")],
    *[(word, False) for word in ("false", "False", "FALSE")],
    *[(word, word) for word in ("yes", "Yes", "no", "on", "off", "y", "n", "tRUE", "nULL", "None", "NaN", "inf", "nan")],
    ("0", 0),
    ("-0", 0),
    ("7", 7),
    ("+7", 7),
    ("-7", -7),
    ("010", 10),
    ("-010", -10),
    ("08", 8),
    ("0o17", 15),
    ("0x1F", 31),
    ("0xfF", 255),
    ("-0x1F", "-0x1F"),
    ("+0o17", "+0o17"),
    ("0o8", "0o8"),
    ("0X1F", "0X1F"),
    ("0b11", "0b11"),
    ("12:30", "12:30"),
    ("190:20:30", "190:20:30"),
    ("1_000", "1_000"),
    ("1,000", "1,000"),
    ("2024-01-31", "2024-01-31"),
    ("=", "="),
    ("<<", "<<"),
    ("١٢", "١٢"),  # digits, but not those of YAML
    ("1" * 400, int("1" * 400)),
    ("1.5", 1.5),
    ("1e-3", 1e-3),
    ("1E5", 1e5),
    ("+1.0E5", 1e5),
    ("-1.5e+3", -1500.0),
    (".5", 0.5),
    ("-.5", -0.5),
    ("5.", 5.0),
    ("5.e1", 50.0),
    ("01.5", 1.5),
    (".", "."),
    ("+", "+"),
    ("e5", "e5"),
    ("1e", "1e"),
    ("1.2.3", "1.2.3"),
    ("1.5f", "1.5f"),
    ("1_0.5", "1_0.5"),
    *[(word, math.inf) for word in (".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF")],
    *[(word, -math.inf) for word in ("-.inf", "-.Inf", "-.INF")],
    *[(word, NAN) for word in (".nan", ".NaN", ".NAN")],
    (".iNF", ".iNF"),
    ("-.nan", "-.nan"),
    ("'1'", "1"),
    ('"null"', "null"),
    ('"true"', "true"),
    ("''", ""),
    ('"a\\tb\\u00e9"', "a\tbé"),
    ("|\n  1\n", "1\n"),
    (">-\n  true\n", "true"),
    ("a # b", "a"),
    ("a#b", "a#b"),
    ("two\n  lines", "two lines"),
]

# (the text, where, what is said)
SYNTAX: list[tuple[str, str, str]] = [
    ("a:\n\tb: 1", "2:1", "a tab cannot be used for indentation: use spaces"),
    ("a: 1\n\tb: 2", "2:1", "a tab cannot be used for indentation: use spaces"),
    ("a: |\n\tb", "2:1", "a tab cannot be used for indentation: use spaces"),
    ("a: @x", "1:4", '"@x" cannot start a value: put it in quotes if it is text'),
    ("a: `x`", "1:4", '"`x`" cannot start a value: put it in quotes if it is text'),
    ("a: 50\nb: %x", "2:4", '"%x" cannot start a value: put it in quotes if it is text'),
    ("a: ? b", "1:4", '"?" cannot start a value: put it in quotes if it is text'),
    ("a:\n  [1, 2", "2:8", 'expected "," or "]" in the list that starts on line 2, found the end of the text'),
    ("a: [[1, 2]\nb: 3", "2:1", 'expected "," or "]" in the list that starts on line 1, found "b"'),
    ("a: [[1, 2]\n  [3, 4]]", "2:3", 'expected "," or "]" in the list that starts on line 1, found "["'),
    ("a: {b: 1\n", "2:1", 'expected "," or "}" in the mapping that starts on line 1, found the end of the text'),
    ("a: [1]]", "1:7", 'expected the next key on a line of its own, indented as on line 1, found "]"'),
    ("a: 'b' c", "1:8", 'expected the next key on a line of its own, indented as on line 1, found "c"'),
    ("a:\n  b: 1\n c: 2", "3:2", 'expected the next key on a line of its own, indented as on line 1, found "c"'),
    (
        "- 1\n 2: 3",
        "2:3",
        'unexpected ":": put text that holds ": " in quotes, end keys with ":" and indent them alike',
    ),
    ("- a: 1\nb: 1", "2:1", 'expected the next "-" on a line of its own, indented as on line 1, found "b"'),
    ("a: b: c", "1:5", 'unexpected ":": put text that holds ": " in quotes, end keys with ":" and indent them alike'),
    (
        "seed 7\nx: 1",
        "2:2",
        'unexpected ":": put text that holds ": " in quotes, end keys with ":" and indent them alike',
    ),
    ("a: - 1", "1:4", 'a list written with "-" must start on a line of its own'),
    ("a: 1\nseed 7\nx: 1", "3:1", 'expected ":" after the key on line 2'),
    ("a: 1\nb: 'c\nd: 2", "2:4", "the quotes that open here are never closed"),
    ('a: "b\n---\n"', "1:4", "the quotes that open here are never closed"),
    ('a: "C:\\dir"', "1:7", "an escape that YAML does not have: double the backslash, or use single quotes"),
    ('a: "\\xZZ"', "1:7", "an escape that YAML does not have: double the backslash, or use single quotes"),
    ("a: |b\n  c", "1:5", 'expected a line break after the "|" that starts a block of text, found "b"'),
    ("a: [*, b]", "1:6", '"*" must be followed by a name: put it in quotes if it is text'),
    ("a: & b", "1:5", '"&" must be followed by a name: put it in quotes if it is text'),
    ("%FOO\n---\na: 1", "1:5", 'a line that starts with "%" is a directive, and this one is not known'),
    ("%YAML 3.0\n---\na: 1", "1:1", 'a line that starts with "%" is a directive, and this one is not known'),
    ("a: !e!b c", "1:4", '"!" starts a tag, and this one is not known: put it in quotes if it is text'),
    ("a: [:, b]", "1:5", 'expected a value, found ":": text that starts with a sign, as ":" or "#", needs quotes'),
    ("a: [, b]", "1:5", 'expected a value, found ",": text that starts with a sign, as ":" or "#", needs quotes'),
    ("{a: 1} b", "1:8", 'expected the end of the text, found "b"'),
    ("a: 1\n---\nb: 2", "2:1", "a second document starts here: expected one"),
    ("---\na: 1\n---\n", "3:1", "a second document starts here: expected one"),
    ("---\n---\na: 1", "2:1", "a second document starts here: expected one"),
    ("a\0: 1", "1:2", "the character U+0000 is not allowed in YAML"),
    ("a: 1\nb: \x1b[0m", "2:4", "the character U+001B is not allowed in YAML"),
    ("a: \ud800", "1:4", "the character U+D800 is not allowed in YAML"),
]


def said(fault: Fault) -> tuple[str, str]:
    assert fault.place is not None
    assert fault.place.file == "t.yaml"
    return f"{fault.place.line}:{fault.place.column}", fault.message


def faults(text: str, text_keys: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """What `parse` finds wrong with a text, as (line:column, message)."""
    with pytest.raises(AttnTraceError) as caught:
        parse(text, "t.yaml", text_keys)
    return [said(fault) for fault in caught.value.faults]


def same(found: Any, expected: Any) -> bool:
    """Equal, of the same type, and −0.0 is not 0.0."""
    if expected is NAN:
        return isinstance(found, float) and math.isnan(found)
    return repr(found) == repr(expected)


def spot(document: Document, *path: str | int) -> str:
    place = document.place(path)
    return f"{place.line}:{place.column}"


def key_spot(document: Document, *path: str | int) -> str:
    place = document.key_place(path)
    return f"{place.line}:{place.column}"


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both scanners of PyYAML, since libyaml is not everywhere."""
    if not hasattr(pyyaml, request.param):
        pytest.skip("PyYAML without libyaml")
    monkeypatch.setattr(yaml, "LOADER", getattr(pyyaml, request.param))
    return str(request.param)


# Values


@pytest.mark.parametrize(("written", "value"), SCALARS, ids=[repr(w)[:20] for w, _ in SCALARS])
def test_scalar(written: str, value: Any, loader: str) -> None:
    assert same(parse(f"a: {written}", "t.yaml").data["a"], value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("!!str 1", "1"),
        ("!!str", ""),
        ("! 1", "1"),
        ("! ''", ""),
        ("!!int '12'", 12),
        ("!!int 0x1F", 31),
        ("!!float 1", 1.0),
        ("!!float '.inf'", math.inf),
        ("!!bool 'true'", True),
        ("!!null ''", None),
        ("!!seq [1]", [1]),
        ("! [1]", [1]),
        ("!!map {b: 1}", {"b": 1}),
        ("!<tag:yaml.org,2002:str> 1", "1"),
    ],
)
def test_core_tag(written: str, value: Any, loader: str) -> None:
    assert same(parse(f"a: {written}", "t.yaml").data["a"], value)


def test_nested() -> None:
    text = "a:\n- [1, x]\n- {b: , c: [~]}\n-\n- - 2\nd: {e}\n'f': [g: 1]\n"
    expected = {"a": [[1, "x"], {"b": None, "c": [None]}, None, [2]], "d": {"e": None}, "f": [{"g": 1}]}
    assert parse(text, "t.yaml").data == expected


def test_keys_are_text() -> None:
    text = "1: a\nnull: b\ntrue: c\n1e3: d\n'': e\n? f\n: g\n<<: h\n!!int 2: i"
    keys = ["1", "null", "true", "1e3", "", "f", "<<", "2"]
    assert parse(text, "t.yaml").data == dict(zip(keys, "abcdeghi", strict=True))


def test_merge_key_is_an_ordinary_key() -> None:
    assert parse("a: &a {x: 1}\nb: {<<: *a}", "t.yaml").data["b"] == {"<<": {"x": 1}}


def test_document_marks_and_name() -> None:
    document = parse("%YAML 1.2\n---\na: 1\n...\n", "t.yaml")
    assert (document.data, document.name) == ({"a": 1}, "t.yaml")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("[yes, null, 1.0, 1e3, ~, 'x', 010]", ["yes", "null", "1.0", "1e3", "~", "x", "010"]),
        ("['', \"\"]", ["", ""]),
        ("\n- a\n-\n- !!int 1\n- !!int x", ["a", "", "1", "x"]),
        ("{a: 1, b: [2, {c: true}], 3: }", {"a": "1", "b": ["2", {"c": "true"}], "3": ""}),
        ("null", "null"),
        ("~", "~"),
        ("", None),
        ("''", ""),
        ("12:30", "12:30"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_text_key(written: str, value: Any) -> None:
    assert parse(f"title: {written}\n", "t.yaml", {"title"}).data == {"title": value}


def test_text_key_counts_at_the_top_alone() -> None:
    data = parse("title: 1\nx: {title: 1}\ny: 1", "t.yaml", ["title", "y2"]).data
    assert data == {"title": "1", "x": {"title": 1}, "y": 1}


def test_alias_is_read_by_the_key_it_stands_under() -> None:
    data = parse("x: &x [1, yes]\ntokens: *x\nlabels: &y [1.0]\nz: *y", "t.yaml", {"tokens", "labels"}).data
    assert data == {"x": [1, "yes"], "tokens": ["1", "yes"], "labels": ["1.0"], "z": [1.0]}


@pytest.mark.parametrize(
    ("text", "value"),
    [("", None), ("# c", None), ("---", None), ("1e-3", 1e-3), ("[1, {a: no}]", [1, {"a": "no"}]), ("a b", "a b")],
)
def test_parse_value(text: str, value: Any) -> None:
    assert same(parse_value(text, "--set"), value)


def test_parse_value_keeps_the_rules() -> None:
    with pytest.raises(AttnTraceError) as caught:
        parse_value("{a: 1, a: !foo 2}", "--set")
    assert [str(fault.place) for fault in caught.value.faults] == ["--set:1:8", "--set:1:11"]


def trees(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects. Keys stay below the 1024 characters that YAML allows a key on one line."""
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
    keys = text.map(lambda key: key[:100])
    values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(keys, inner), max_leaves=30)
    return st.dictionaries(keys, values, max_size=5)


# JSON escapes a character beyond U+FFFF as two, which YAML does not put together again.
ESCAPABLE = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))
# What YAML lets a quoted text hold unescaped, line breaks aside.
PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"], exclude_characters="\ufffe\uffff"))
INDENTS = st.sampled_from([None, 0, 3])


@given(trees(ESCAPABLE), INDENTS, st.sampled_from([(",", ":"), (", ", ": ")]))
def test_json_comes_back(data: dict[str, Any], indent: int | None, separators: tuple[str, str]) -> None:
    assert same(parse(json.dumps(data, indent=indent, separators=separators), "t.yaml").data, data)


# Places


def test_places() -> None:
    document = parse("# c\nx: [[1, 2],\n  [3, {k: v}]]\n\ny:\n  z:  !!str 5\n  'w':\n", "t.yaml")
    assert spot(document) == "2:1"
    assert spot(document, "x") == "2:4"
    assert spot(document, "x", 0, 1) == "2:9"
    assert spot(document, "x", 1, 1, "k") == "3:11"
    assert spot(document, "y") == "6:3"
    assert spot(document, "y", "z") == "6:7"
    assert spot(document, "y", "w") == "7:7"
    assert key_spot(document, "x") == "2:1"
    assert key_spot(document, "x", 1, 1, "k") == "3:8"
    assert key_spot(document, "y", "w") == "7:3"


def test_place_of_what_is_not_there_is_the_nearest_around_it() -> None:
    document = parse("a:\n  b: [1, 2]\n  c: 3\n", "t.yaml")
    assert spot(document, "a", "b", 2) == "2:6"
    assert spot(document, "a", "b", -1) == "2:6"
    assert spot(document, "a", "b", 0, 0, "x") == "2:7"
    assert spot(document, "a", "b", "c") == "2:6"
    assert spot(document, "q", "c") == "1:1"
    assert key_spot(document, "a", "q", "c") == "2:3"  # not the key c of a
    assert key_spot(document, "a", "b", 1) == "2:10"
    assert key_spot(document, "q") == "1:1"
    assert key_spot(document) == "1:1"


def test_place_through_an_alias() -> None:
    document = parse("a: &a [1, &m {k: 2}]\nb: *a\nc: *m\n", "t.yaml")
    assert spot(document, "b") == "2:4"
    assert spot(document, "b", 0) == "1:8"
    assert spot(document, "b", 7) == "2:4"
    assert key_spot(document, "b", 1, "k") == key_spot(document, "c", "k") == "1:15"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_place_shows_its_line(end: str, loader: str) -> None:
    place = parse(f"\ufeff# é𝄞{end}ключ𝄞: é, 𝄞 # z{end}𝄞: [𝄞𝄞, 1]{end}", "t.yaml").place(("𝄞", 1))
    assert (place.file, place.line, place.column, place.source) == ("t.yaml", 3, 9, "𝄞: [𝄞𝄞, 1]")


def test_lines_are_those_of_an_editor() -> None:
    """A next-line character, which ends a line in YAML 1.1, does not in what a reader opens the file with."""
    place = parse("a: 'x\x85\u2028'\nb: 1", "t.yaml").place(("b",))
    assert (place.line, place.column) == (2, 4)


def test_byte_order_mark_is_no_column(loader: str) -> None:
    document = parse("\ufeffa: 1", "t.yaml")
    assert (document.data, spot(document, "a"), document.place(("a",)).source) == ({"a": 1}, "1:4", "a: 1")


def leaves(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    if isinstance(data, (dict, list)):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        return [leaf for step, value in items for leaf in leaves(value, (*path, step))]
    return [(path, data)]


@given(trees(PRINTABLE), INDENTS)
def test_every_leaf_is_where_its_place_says(data: dict[str, Any], indent: int | None) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    document = parse(text, "t.yaml")
    for path, value in leaves(data):
        place = document.place(path)
        assert place.source == text.split("\n")[place.line - 1]
        assert place.source[place.column - 1 :].startswith(json.dumps(value, ensure_ascii=False))
        if isinstance(path[-1], str):
            key = document.key_place(path)
            assert key.source[key.column - 1 :].startswith(json.dumps(path[-1], ensure_ascii=False))


# Faults


@pytest.mark.parametrize(("text", "where", "message"), SYNTAX, ids=[repr(text)[:30] for text, _, _ in SYNTAX])
def test_syntax(text: str, where: str, message: str) -> None:
    assert faults(text) == [(where, message)]


@pytest.mark.parametrize("text", [text for text, _, _ in SYNTAX if "%FOO" not in text], ids=repr)
def test_python_scanner_is_understood_too(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may find the fault a character away, and it lets an unknown directive pass."""
    monkeypatch.setattr(yaml, "LOADER", pyyaml.SafeLoader)
    [(_, message)] = faults(text)
    assert message in {message for _, _, message in SYNTAX}


def test_empty_text(loader: str) -> None:
    expected = [("1:1", 'the file is empty: expected a mapping such as "x: [[1, 0], [0, 1]]"')]
    assert faults("") == faults("# nothing\n\n") == faults("\ufeff") == faults("  ") == expected
    assert faults("---\n")[0][1] == expected[0][1]


@pytest.mark.parametrize(
    ("text", "found"),
    [("- 1\n- 2", "a list"), ("x:1", '"x:1"'), ("''", '""'), ("null", '"null"'), ("z" * 99, f'"{"z" * 40}…"')],
)
def test_top_level_must_be_a_mapping(text: str, found: str) -> None:
    assert faults(text) == [("1:1", f'expected a mapping such as "x: [[1, 0], [0, 1]]", found {found}')]


def test_every_duplicate_key_is_a_fault() -> None:
    text = "w_q: 1\nx: 2\nw_q: [{a: 1, b: 2, a: 3}]\n'w_q': 4\n"
    assert faults(text) == [
        ("3:1", 'duplicate key "w_q" (first on line 1)'),
        ("3:20", 'duplicate key "a" (first on line 3)'),
        ("4:1", 'duplicate key "w_q" (first on line 1)'),
    ]


def test_same_key_in_two_mappings_is_no_duplicate() -> None:
    assert parse("a: {k: 1}\nk: {k: 1}", "t.yaml").data == {"a": {"k": 1}, "k": {"k": 1}}


def test_key_must_be_a_scalar(loader: str) -> None:
    message = "a key must be a word, found a list or a mapping"
    assert faults("? [a]\n: 1\n? {b: c}\n: 2\n") == [("1:3", message), ("3:3", message)]
    assert faults("a: &a [1]\n*a : 2") == [("2:1", message)]


def test_alias_may_be_a_key() -> None:
    assert parse("a: &a 1\n*a : 2", "t.yaml").data == {"a": 1, "1": 2}
    assert faults("k: &k k\n*k : 2") == [("2:1", 'duplicate key "k" (first on line 1)')]


@pytest.mark.parametrize(
    ("value", "tag", "fitting"),
    [
        ("!foo 1", "!foo", "!!int, !!float, !!bool, !!null, !!str"),
        ("!!python/object/apply:os.system [ls]", "!!python/object/apply:os.system", "!!seq"),
        ("!!python/name:os.system ''", "!!python/name:os.system", "!!int, !!float, !!bool, !!null, !!str"),
        ("!!set {a}", "!!set", "!!map"),
        ("!!binary aGk=", "!!binary", "!!int, !!float, !!bool, !!null, !!str"),
        ("!<int> 1", "int", "!!int, !!float, !!bool, !!null, !!str"),
        ("!!seq {a: 1}", "!!seq", "!!map"),
        ("!!int [1]", "!!int", "!!seq"),
        ("!!map ''", "!!map", "!!int, !!float, !!bool, !!null, !!str"),
        (f"!{'z' * 99} 1", f"!{'z' * 39}…", "!!int, !!float, !!bool, !!null, !!str"),
    ],
)
def test_tag_is_refused(value: str, tag: str, fitting: str, loader: str) -> None:
    why = f"the tag {tag} is refused and nothing is executed: expected {fitting} or none, or quotes if it is text"
    assert faults(f"a: {value}") == [("1:4", why)]
    assert faults(f"a: {value}", ("a",)) == [("1:4", why)]


def test_tag_of_a_key_is_refused() -> None:
    [(where, message)] = faults("a: 1\n!foo b: 1")
    assert (where, message[:15]) == ("2:1", "the tag !foo is")


def test_tag_that_the_text_does_not_fit() -> None:
    assert faults("a: !!int x\nb: !!bool yes\nc: !!float 12:30\nd: !!null 0\ne: !!int 1.0") == [
        ("1:4", '"x" does not fit the tag !!int'),
        ("2:4", '"yes" does not fit the tag !!bool'),
        ("3:4", '"12:30" does not fit the tag !!float'),
        ("4:4", '"0" does not fit the tag !!null'),
        ("5:4", '"1.0" does not fit the tag !!int'),
    ]


def test_exclamation_mark_as_a_word() -> None:
    assert faults("tokens: [wait, !, x]", ("tokens",)) == [("1:16", '"!" alone is a tag: put it in quotes if it is text')]


@pytest.mark.parametrize("digits", ["9" * 641, "-" + "9" * 5000, "0x" + "f" * 5000, "0" * 100_000])
def test_endless_integer(digits: str) -> None:
    message = f"an integer of {len(digits)} digits: at most 640 are read"
    assert faults(f"a: {digits}\nb: [!!int '{digits}']") == [("1:4", message), ("2:5", message)]


def test_integer_of_any_readable_length_can_be_printed() -> None:
    longest = "9" * yaml.DIGITS
    assert str(parse_value(longest, "t.yaml")) == longest


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("a: *b", "1:4", "*b cannot be expanded: nothing above it is named &b; put it in quotes if it is text"),
        (
            "a: *b\nb: &b 1",
            "1:4",
            "*b cannot be expanded: nothing above it is named &b; put it in quotes if it is text",
        ),
        ("a: &a [*a]", "1:8", "*a cannot be expanded: it is a part of &a itself"),
        ("a: &a {b: [1, {c: *a}]}", "1:19", "*a cannot be expanded: it is a part of &a itself"),
        ("a: &a 1\nb: &a [*a]", "2:8", "*a cannot be expanded: it is a part of &a itself"),
    ],
)
def test_alias_of_nothing_or_itself(text: str, where: str, why: str, loader: str) -> None:
    assert faults(text) == [(where, f"the alias {why}")]


def test_alias_names_the_latest_anchor() -> None:
    assert parse("x: [&a 1, *a, &a 2, *a]", "t.yaml").data == {"x": [1, 1, 2, 2]}


def test_copies_of_an_alias_are_apart() -> None:
    data = parse("a: &a [1]\nb: *a", "t.yaml").data
    data["b"].append(2)
    assert data["a"] == [1]


def test_faults_of_all_kinds_come_together_in_the_order_of_the_file() -> None:
    text = f"a: {'9' * 700}\nb: !foo 1\nb: *x\nc: !!int d\n? [e]\n: 1\ny: &y [*y, {'8' * 700}]\nz: [*x]\n"
    assert [where for where, _ in faults(text)] == ["1:4", "2:4", "3:1", "3:4", "4:4", "5:3", "7:8", "7:12", "8:5"]


def test_faults_before_a_syntax_error_are_kept() -> None:
    assert [where for where, _ in faults("a: 1\na: !foo 2\nb: ]")] == ["2:1", "2:4", "3:4"]


def test_fault_of_an_aliased_value_is_said_once() -> None:
    assert [where for where, _ in faults("a: &a [!!int x]\nb: [*a, *a]")] == ["1:8"]


# Bounds


def nested(depth: int) -> str:
    """A mapping with lists inside: `depth` levels in all."""
    return f"a: {'[' * (depth - 1)}{']' * (depth - 1)}"


def test_depth(loader: str) -> None:
    assert parse(nested(64), "t.yaml").data["a"]
    assert faults(nested(65)) == [("1:67", "lists and mappings nested more than 64 deep")]
    assert faults("- " * 65 + "1") == [("1:129", "lists and mappings nested more than 64 deep")]


def test_depth_behind_aliases(loader: str) -> None:
    chain = "x:\n- &a0 []\n" + "".join(f"- &a{i} [*a{i - 1}]\n" for i in range(1, 62))
    assert parse(chain, "t.yaml").data["x"][61]
    why = "the alias *a61 cannot be expanded: lists and mappings nested more than 64 deep"
    assert faults(chain + "- [*a61]\n") == [("64:4", why)]


@pytest.mark.parametrize("text", ["[" * 1_000_000, "{a: " * 500_000, "- " * 500_000, "? " * 500_000])
def test_abyss(text: str) -> None:
    assert [message for _, message in faults(text)] == ["lists and mappings nested more than 64 deep"]


def laughs(width: int, levels: int) -> str:
    """The billion laughs: each level names the one before `width` times."""
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * width)}]\n" for i in range(1, levels)]
    return "a0: &a0 [ha]\n" + "".join(lines)


@pytest.mark.parametrize("text", [laughs(10, 10), laughs(1000, 60), laughs(2, 60)], ids=["billion", "googol", "binary"])
def test_alias_bomb(text: str, loader: str) -> None:
    tracemalloc.start()
    [(_, message)] = faults(text)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert message.startswith("aliases expand the ")
    assert message.endswith(": write them out")
    assert peak < 60e6


def test_bound_of_small_texts() -> None:
    """998 times a list of 99, 96 more values and the 104 that are around them are 100 000."""
    text = "a: &a [" + "1, " * 98 + "1]\nb: [" + "*a, " * 998 + "1, " * 96
    assert len(parse(text + "]", "t.yaml").data["b"]) == 998 + 96
    why = "aliases expand the 1199 values written here to more than 100000: write them out"
    assert faults(text + "1]") == [("2:5", why)]


def test_bound_of_large_texts() -> None:
    """Ten times the 20 015 values written, where that is more."""
    text = "a: &a [" + "1, " * 20_000 + "]\nb: ["
    assert len(parse(text + "*a, " * 9 + "]", "t.yaml").data["b"]) == 9
    [(where, message)] = faults(text + "*a, " * 10 + "]")
    assert where == "2:5"
    assert message.endswith("to more than 200150: write them out")


def test_hundred_thousand_numbers() -> None:
    row = "[" + ", ".join(["-0.12345"] * 100) + "]"
    data = parse("x: [" + ",\n".join([row] * 1000) + "]", "t.yaml").data
    assert (len(data["x"]), len(data["x"][999]), data["x"][999][99]) == (1000, 100, -0.12345)


# Anything at all

SIGNS = [*"ab1:?-,[]{}'\"|>#&*!%@`~\\\t\r\n\x85\ufeffé𝄞", "---", "...", "<<", "\\u", "\n  ", ": ", "- ", "a: "]
NAMES = ["&a ", "*a", "!!str ", "!!int ", "!x "]
SOUP = st.lists(st.sampled_from([*SIGNS, *NAMES]), max_size=40).map("".join)


@given(st.text() | SOUP)
@pytest.mark.parametrize("scanner", ["CSafeLoader", "SafeLoader"])
def test_any_text_gives_data_or_faults_with_places(scanner: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "LOADER", getattr(pyyaml, scanner, pyyaml.SafeLoader))
        try:
            document = parse(text, "t.yaml", {"a"})
        except AttnTraceError as error:
            assert error.faults
            for fault in error.faults:
                assert fault.place
                assert fault.place.source.partition("…")[0] in text  # dots stand for what a refused tag hides
                assert 1 <= fault.place.column <= len(fault.place.source) + 3  # the line break counts
                str(fault)
        else:
            assert isinstance(document.data, dict)
            for path, _ in leaves(document.data):
                assert document.place(path).line <= text.count("\n") + text.count("\r") + 1


@given(SOUP)
def test_any_value(text: str) -> None:
    try:
        parse_value(text, "--set")
    except AttnTraceError as error:
        assert all(fault.place for fault in error.faults)

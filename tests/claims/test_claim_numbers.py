"""How finely a number is claimed: half a unit of its last digit, and nothing where it is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attntrace.claims import read_mapping, read_text

HALVES = {
    "0.124": 0.0005,
    "1.2e-3": 0.00005,
    "3": 0.5,
    "-inf": 0.0,
    "0.5000": 0.00005,
    ".25": 0.005,
    "-1.50": 0.005,
    "12E2": 50.0,
    "1.2E+03": 50.0,
    "nan": 0.0,
    "∞": 0.0,
    "−0.7": 0.05,
    "1.": 0.005,  # NumPy and torch cut zeros; nobody prints fewer than two decimals
    "0.12345678901": 5e-12,  # eleven digits
    "0.123456789012": 0.0,  # twelve: not rounded
    "123456.789012": 0.0,
    "0.000123456789012": 0.0,
}


def only(text: str, **options: str):
    (claim,) = read_text(text, "page.txt", **options).claims
    return claim


@pytest.mark.parametrize(("text", "half"), HALVES.items())
@pytest.mark.parametrize(
    "form", ["weights = [{}]", "weights\n| a |\n|---|\n| {} |", '{{"weights": ["{}"]}}', "weights: ['{}']"]
)
def test_half_a_unit_of_the_last_digit(text, half, form):
    claim = only(form.format(text))
    assert claim.half.ravel().tolist() == [half]
    value = float(text.replace("−", "-").replace("∞", "inf"))
    np.testing.assert_array_equal(claim.values.ravel(), [value])
    assert claim.there.all()


def test_one_full_number_makes_the_whole_array_exact():
    claim = only("weights = [0.5, 0.333333333333]\n\nscores = [0.5, 0.3]".partition("\n\n")[0])
    assert claim.half.tolist() == [0.0, 0.0]
    both = read_text("weights = [0.5, 0.333333333333]\n\nscores = [0.5, 0.3]", "page.txt").claims
    assert both[1].half.tolist() == [0.05, 0.05]


def test_a_zero_is_as_fine_as_the_coarsest_number_beside_it():
    assert only("weights = [0, 0.5774, 0.12, -inf]").half.tolist() == [0.005, 0.00005, 0.005, 0]
    assert only("weights = [0.000, 0.5]").half.tolist() == [0.0005, 0.05]
    assert only("weights = [0, 3]").half.tolist() == [0.5, 0.5]
    assert only("weights = [0, 0]").half.tolist() == [0.5, 0.5]


def test_numpy_cuts_zeros_so_its_finest_number_speaks_for_all():
    assert only("weights\n[[0.25 0.5   0.125]]").half.max() == pytest.approx(0.0005)
    assert only("weights = array([0.25, 0.5, 0.125])").half.max() == pytest.approx(0.0005)
    assert only("weights = [0.25, 0.5, 0.125]").half.tolist() == [0.005, 0.05, 0.0005]
    scientific = only("weights\n[[1.e-05 2.5e+03 1.125e+00]]").half.ravel()
    np.testing.assert_allclose(scientific, [0.5e-8, 0.5, 0.5e-3])


def test_numpy_prints_single_precision_with_as_few_digits_as_tell_it_apart():
    value = np.float32(100.1)
    claim = only(f"weights\n{np.array([value, np.float32(0.98522025)])}")
    assert abs(float(value) - claim.values[0]) <= claim.half[0]


@pytest.mark.parametrize("blank", ["?", "_", "__", "–", "-", "—", "null", "None", "~", "n/a", "N/A"])
def test_blank_cells(blank):
    for text in (f"weights = [0.5, {blank}]", f"weights\n0.5\t{blank}", f"weights\n|a|b|\n|-|-|\n|0.5|{blank}|"):
        claim = only(text)
        assert claim.there.ravel().tolist() == [True, False]
        assert math.isnan(claim.values.ravel()[1])
        assert claim.half.ravel().tolist() == [0.05, 0.0]


@pytest.mark.parametrize("text", ["weights: [0.5, ?]", "weights: [0.5, -]", "weights: [0.5, ~]", "weights: [0.5, '']"])
def test_blank_cells_of_yaml(text):
    (claim,) = read_text(text, "sheet.yaml", suffix=".yaml").claims
    assert claim.there.tolist() == [True, False]


def test_empty_cells_and_rows_are_blank():
    assert only("weights = [0.5, , 0.25]").there.tolist() == [True, False, True]
    assert only('{"weights": [[0.5, 0.5], null]}').there.tolist() == [[True, True], [False, False]]
    (claim,) = read_text("weights:\n  - [0.5, , 0.5]\n  -\n", "sheet.yaml", suffix=".yaml").claims
    assert claim.there.tolist() == [[True, False, True], [False, False, False]]
    (claim,) = read_text("weights,,\n0.5,,0.5\n", "sheet.csv", suffix=".csv").claims
    assert claim.there.tolist() == [[True, False, True]]


def test_nan_is_a_number_and_no_blank():
    claim = only("weights = [nan, ?]")
    assert claim.there.tolist() == [True, False]


def test_a_mapping_from_python_says_what_repr_writes():
    one, two, three = read_mapping(
        {"scaled": [[0.124, 3], [None, -math.inf]], "weights": [[1 / 3, 0.5]], "output": np.array([[0.5, 1.0]])}
    ).claims
    assert one.half.tolist() == [[0.0005, 0.5], [0.0, 0.0]]
    assert one.there.tolist() == [[True, True], [False, True]]
    assert two.half.tolist() == [[0.0, 0.0]]
    assert three.half.tolist() == [[0.0, 0.0]]
    (single,) = read_mapping({"weights": [[np.float64(0.25), np.int64(3)]]}).claims
    assert single.half.tolist() == [[0.005, 0.5]]

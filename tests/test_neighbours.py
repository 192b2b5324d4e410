"""The nearest rows of a matrix, against a search that compares everything."""

from __future__ import annotations

import pytest
import torch

from selftrain.neighbours import MANY, largest, nearest_rows


@pytest.mark.parametrize("columns", [7, MANY - 1, MANY, MANY + 5])
@pytest.mark.parametrize("k", [1, 7])
def test_the_largest_values_are_those_of_topk(columns: int, k: int) -> None:
    x = torch.rand(20, columns, generator=torch.Generator().manual_seed(0))
    values, places = largest(x, k)
    expected = x.topk(k, dim=1)
    assert torch.equal(values, expected.values)
    assert torch.equal(places, expected.indices)


def test_the_largest_values_may_be_in_one_group_and_in_the_rest() -> None:
    x = torch.zeros(2, MANY + 3)
    width = (MANY + 3) // 16
    x[0, [5, 5 + width, 5 + 2 * width]] = torch.tensor([1.0, 3.0, 2.0])
    x[1, [MANY + 2, 0]] = torch.tensor([2.0, 1.0])
    assert largest(x, 3)[1][0].tolist() == [5 + width, 5 + 2 * width, 5]
    assert largest(x, 2)[1][1].tolist() == [MANY + 2, 0]


@pytest.mark.parametrize("n", [50, MANY + 10])
def test_the_nearest_rows_are_those_with_the_largest_cosine(n: int) -> None:
    x = torch.randn(n, 6, generator=torch.Generator().manual_seed(0))
    near = nearest_rows(x, 4)
    unit = torch.nn.functional.normalize(x[:40], dim=1) @ torch.nn.functional.normalize(x, dim=1).T
    unit[torch.arange(40), torch.arange(40)] = -2
    assert torch.equal(near.rows[:40], unit.topk(4, dim=1).indices)

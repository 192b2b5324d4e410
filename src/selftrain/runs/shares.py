"""Class frequencies that a user gives: all equal, or a CSV file with the columns class,share.

Knows nothing of what they are used for.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from selftrain.errors import UserError, nearest
from selftrain.files import read_bytes


def given_shares(text: str, classes: Sequence[str], argument: str, words: str) -> Tensor:
    """Return the share (K,) of each class; a class without a row has share 0.

    ``argument`` is where the text comes from and ``words`` what else it could be, for errors.
    """
    if text == "uniform":
        return torch.full((len(classes),), 1 / len(classes))
    path = Path(text)
    where = f"{argument}={text}" if "`" not in argument else f"{argument} {text}"
    if not path.is_file():
        raise UserError(f"{where}: expected {words}, or a CSV file with the columns class,share.")
    shares = dict.fromkeys(classes, 0.0)
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines(keepends=True)
        rows = list(csv.DictReader(lines))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{where}: not a CSV file ({error}).") from None
    for number, row in enumerate(rows, 2):
        name, share = row.get("class"), row.get("share")
        if name not in shares:
            raise UserError(f"{where}, row {number}: there is no class {name!r}.{nearest(str(name), classes)}")
        shares[name] = _share(str(share), f"{where}, row {number}")
    values = torch.tensor([shares[name] for name in classes])
    if not values.sum() > 0:
        raise UserError(f"{where}: the shares of all classes are 0.")
    return values / values.sum()


def _share(text: str, where: str) -> float:
    try:
        share = float(text)
    except ValueError:
        raise UserError(f"{where}: the share {text!r} is not a number.") from None
    if not 0 <= share < math.inf:
        raise UserError(f"{where}: the share {text!r} must be a number of at least 0.")
    return share

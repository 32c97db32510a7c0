"""Compares XGBoost's results on the device with those of its own CPU back end. Prints the number of
checks.

Features have fewer values than there are bins, so both find the same places to split.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import xgboost

random = np.random.default_rng(0)
rows = random.integers(0, 10, (600, 6)).astype(np.float32)
rows[random.random(rows.shape) < 0.05] = np.nan  # missing values
value = np.nan_to_num(rows)
value = value[:, 0] * 2 + np.sin(value[:, 1]) + value[:, 2] * value[:, 3]
LABELS = {"reg:squarederror": value, "binary:logistic": value > np.median(value)}


def trained(objective: str, device: str) -> tuple[list[str], Any]:
    """The splits of all trees, and the predictions."""
    data = xgboost.DMatrix(rows, LABELS[objective])
    options = {"tree_method": "hist", "max_depth": 3, "max_bin": 16}
    options |= {"objective": objective, "device": device}
    booster = xgboost.train(options, data, num_boost_round=4)
    splits = [re.sub("leaf=.*", "leaf", tree) for tree in booster.get_dump()]
    return splits, booster.predict(data)


checks = 0
for objective in LABELS:
    (splits, found), (wanted_splits, wanted) = trained(objective, "cuda"), trained(objective, "cpu")
    assert splits == wanted_splits, objective
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5, err_msg=objective)
    checks += 2
print(f"{checks} checks")

"""The checks of `tools.gpu_check`, for those who would rather run pytest: `pytest -m gpu tests/gpu`."""

import pytest
import torch
from tools.gpu_check.checks import CHECKS, Check


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_on_the_gpu(check: Check) -> None:
    assert check(torch.device("cuda"))

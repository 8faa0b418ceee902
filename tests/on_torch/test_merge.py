"""The fused merge of partial attention is the eager one, in Triton's interpreter on CPUs."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ringloom.codegen.torch.parts import merge as part  # noqa: E402  only where torch is

NO_TRITON = "Triton, which comes with torch for GPUs, is not installed"
EXACT = {torch.float64: 1e-14, torch.float32: 1e-6}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason=NO_TRITON)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    part.merge_kernel.cache_clear()


def drawn(wide: Any, narrow: Any, dim: int) -> list[Any]:
    """Results and a part [2, 3, 37, dim], rows among them that saw nothing in one or in both."""
    random = torch.Generator().manual_seed(0)
    out, new = torch.randn(2, 2, 3, 37, dim, generator=random, dtype=torch.float64)
    lse, new_lse = torch.randn(2, 2, 3, 37, 1, generator=random, dtype=torch.float64) * 9
    lse[:, :, ::3], new_lse[:, :, ::2] = -torch.inf, -torch.inf
    out, new = out.where(lse > -torch.inf, 0), new.where(new_lse > -torch.inf, 0)
    lse_dtype = torch.promote_types(narrow, torch.float32)
    return [out.to(wide), lse.to(wide), new.to(narrow), new_lse.to(lse_dtype)]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("dim", [16, 24])
@pytest.mark.parametrize("narrow", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_fused_merge_is_the_eager_one(narrow: Any, dim: int) -> None:
    wide = torch.promote_types(narrow, torch.float32)
    for rows in (slice(None), slice(18, None), slice(0, 0)):
        for apart in (False, True):  # parts as flash attention returns them
            eager, fused = drawn(wide, narrow, dim), drawn(wide, narrow, dim)
            for how, (out, lse, new, new_lse) in ((part.merge, eager), (part.merge_fused, fused)):
                new = new.transpose(1, 2).contiguous().transpose(1, 2) if apart else new
                how(*(x[:, :, rows] for x in (out, lse, new, new_lse)))
                how(out, lse, new, new_lse[0, :, 1, :, None])  # one per head, as of sinks
            for ours, wanted in zip(fused[:2], eager[:2], strict=True):
                torch.testing.assert_close(ours, wanted, rtol=EXACT[wide], atol=EXACT[wide])

"""22. A row's logits do not depend on the other rows.

Tested at start, reported, on by default on CPU.
"""

import asyncio
from pathlib import Path

import pytest

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from tests.cluster import cluster
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_margins_are_bit_equal_alone_and_in_company(toy: Path, dtype: str) -> None:
    settings = VerifierSettings(model=str(toy), dtype=dtype)
    async with cluster(verifiers=[lambda: open_verifier(settings)]) as services:
        numerics = services.workers[0].identity.numerics
        assert numerics.row_invariant
        assert numerics.kernels.startswith("native")
        sampling = SamplingParams(temperature=1.0, seed=8, max_tokens=16, ignore_eos=True)
        prompts = [[7 * n + i for i in range(3 + 5 * n)] for n in range(8)]

        async def margins(prompt: list[int], salt: str, **how: object) -> list[object]:
            request = generate_request(prompt, sampling, cache_salt=salt, **how)
            output = await services.client.generate(request)
            return [output.token_ids, output.complete.receipt.min_decision_margin]

        alone = [await margins(p, f"alone-{n}", target_only=True) for n, p in enumerate(prompts)]
        crowd = await asyncio.gather(
            *(margins(p, f"crowd-{n}", target_only=True) for n, p in enumerate(prompts))
        )
        assert crowd == alone
        warm = await asyncio.gather(
            *(margins(p, f"crowd-{n}", num_draft_tokens=4) for n, p in enumerate(prompts))
        )
        assert [ids for ids, _ in warm] == [ids for ids, _ in alone]

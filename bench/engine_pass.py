"""What a pass of the engine costs by its rows, with fused layers and with the model's own modules.

``python -m bench.engine_pass``: SmolLM2-135M-Instruct in bf16, one sequence. Every number of rows
takes its turn in every round, since machines are noisy; medians are reported. The floor is what
reading the weights once takes, as fast as this machine sums a large array with the same threads.
"""

import argparse
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

from bench.report import print_table, write_report
from outrider.checkpoints import prepare
from outrider.engine.cache import SequenceCache
from outrider.engine.ledger import BlockLedger
from outrider.engine.model import load_model
from outrider.engine.plan import Slice, StepPlan
from outrider.engine.selftest import prepare as prepare_engine
from outrider.engine.settings import EngineSettings
from outrider.kernels import load_kernels
from outrider.tree import TreeLayout

FUSED, MODULES = "fused", "modules"


def read_ms(num_bytes: int, threads: int) -> float:
    """Return how long reading so many bytes of memory takes, in ms; the best of ten."""
    data = torch.ones(num_bytes // 8, dtype=torch.int64)
    torch.set_num_threads(threads)
    found = []
    for _ in range(10):
        begin = time.perf_counter()
        data.sum()
        found.append((time.perf_counter() - begin) * 1e3)
    torch.set_num_threads(1)
    return min(found)


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 5, 8, 9, 12, 16, 17, 32])
    parser.add_argument("--context", type=int, default=45, help="positions before the rows")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tree", action="store_true", help="rows are a bushy tree, no chain")
    options = parser.parse_args()

    model = load_model(str(options.model or prepare().target), dtype="bfloat16")
    settings = EngineSettings()
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    with torch.inference_mode():
        packed, trial, report = prepare_engine(model, settings)
        ways = {FUSED: packed.fused, MODULES: None}
        if packed.fused is None:
            del ways[FUSED]
        pool = trial.resized(64)
        cache = SequenceCache(BlockLedger(64), block_size=settings.block_size, salt="")

        def feed(ids: list[int], tree: TreeLayout | None = None) -> float:
            cache.reserve(cache.length + len(ids))
            if tree is not None:
                lengths = [len(path.nodes) for path in tree.paths[1:]]
                cache.fork(cache.length + len(ids) - len(tree.parents), lengths)
            begin = time.perf_counter()
            part = Slice(cache, ids, len(ids), tree)
            plan = StepPlan.build([part], block_size=settings.block_size, device=model.device)
            packed.forward(plan, pool)
            return (time.perf_counter() - begin) * 1e3

        context = [17 + n for n in range(options.context)]
        feed(context)
        cache.extend(context)
        for turn in range(options.rounds + 2):
            for rows in options.rows:
                tree = None
                if options.tree and rows > 1:
                    tree = TreeLayout.of([-1 if n < 3 else (n - 3) // 2 for n in range(rows - 1)])
                for way, packed.fused in ways.items():
                    elapsed = feed([99 + n for n in range(rows)], tree)
                    cache.drop_branches()
                    if turn > 1:
                        times[way, rows].append(elapsed)
        module: Any = model.module
        weights = {p.data_ptr(): p.numel() * p.element_size() for p in module.parameters()}
        floor = read_ms(sum(weights.values()), load_kernels().threads)
    medians = {key: statistics.median(some) for key, some in times.items()}
    table = []
    for rows in options.rows:
        cells = [str(rows)]
        for way in ways:
            took = medians[way, rows]
            of_one = took / medians[way, options.rows[0]]
            cells += [f"{took:.1f}", f"{min(times[way, rows]):.1f}", f"{of_one:.2f}"]
        table.append(cells)
    headers = ["rows", *(f"{way}{what}" for way in ways for what in (" ms", ", best", ", x"))]
    print_table(f"a pass, context {options.context}, kernels {report.kernels}", headers, table)
    print(f"{report.kernels_note} reading the weights once: {floor:.1f} ms".strip())
    details = {f"{way}, {rows} rows": some for (way, rows), some in times.items()}
    summary = {f"{way}_ms_{rows}_rows": took for (way, rows), took in medians.items()}
    print(write_report("engine_pass", {**summary, "floor_ms": floor}, details))


if __name__ == "__main__":
    main()

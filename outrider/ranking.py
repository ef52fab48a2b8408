"""The largest entries of rows, equal values in ascending order of their ids."""

import torch

from outrider.kernels import Kernels, shared_kernels

WIDTH_MULTIPLE = 32
_BLOCK = 16
_MOST_NATIVE = 256
"""Entries that the kernel is asked for: it keeps them in order one by one."""


def top(rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's largest values and their ids, largest first, lowest id first among equals.

    Library top-k calls leave the order of equal values open, and rows of bfloat16 logits are full
    of them.
    Shapes: rows [R, W], W a multiple of 16 where it is large; result [R, min(count, W)] twice.
    """
    num_rows, width = rows.shape
    count = min(count, width)
    kernels = _kernels_for(rows)
    if kernels is not None and 0 < count <= _MOST_NATIVE:
        return _native_top(kernels, rows, count)
    num_blocks = width // _BLOCK
    if width % _BLOCK or num_blocks < 2 * count or num_rows == 0:
        values, ids = torch.sort(rows, dim=-1, descending=True, stable=True)
        return values[:, :count], ids[:, :count]
    # `count` blocks have a maximum of at least `bound`, so the `count` largest entries are not
    # below it.
    blocks = rows.reshape(num_rows, num_blocks, _BLOCK)  # [R, W / 16, 16]
    maxima = blocks.amax(-1)
    bound = maxima.topk(count, sorted=False).values.amin(-1)  # [R]
    row, block = (maxima >= bound[:, None]).nonzero(as_tuple=True)
    found = blocks[row, block]  # [N, 16]
    is_large = (found >= bound[row][:, None]) & (found > -torch.inf)
    which, inner = is_large.nonzero(as_tuple=True)
    row, values, ids = row[which], found[which, inner], block[which] * _BLOCK + inner
    # Pack the candidates of each row side by side, ids ascending.
    per_row = torch.bincount(row, minlength=num_rows)
    slot = torch.arange(len(row), device=rows.device) - (per_row.cumsum(0) - per_row)[row]
    shape = (num_rows, max(int(per_row.max()), count))
    packed = rows.new_full(shape, -torch.inf)
    packed_ids = row.new_zeros(shape)
    # A row that is masked but for a few has no `count` candidates; the lowest masked ids follow.
    short = (per_row < count).nonzero()[:, 0]
    if len(short):
        masked_first = (rows[short, : 2 * count] > -torch.inf).to(torch.uint8)
        masked_ids = masked_first.sort(dim=-1, stable=True).indices
        behind = torch.arange(count, device=rows.device) - per_row[short][:, None]
        packed_ids[short, :count] = masked_ids.gather(1, behind.clamp(min=0))
    packed[row, slot] = values
    packed_ids[row, slot] = ids
    ordered, order = torch.sort(packed, dim=-1, descending=True, stable=True)
    return ordered[:, :count], packed_ids.gather(1, order[:, :count])


def first_and_second(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's id of the largest value, lowest among equals, and its lead over the second.

    Shapes: rows [R, W] float, W a multiple of 16 where it is large; ids [R] int64, leads [R], inf
    where there is no second.
    """
    num_rows, width = rows.shape
    kernels = _kernels_for(rows)
    if kernels is not None and width > 1:
        values, ids = _native_top(kernels, rows, 2)
        first, second = values.unbind(1)
        return ids[:, 0], (first - second).masked_fill(second == -torch.inf, torch.inf)
    # A plain argmax over a wide row takes ten times the maximum, so first find the block.
    size = _BLOCK if width % _BLOCK == 0 else width
    blocks = rows.reshape(num_rows, width // size, size)
    maxima = blocks.amax(-1)
    index = torch.arange(num_rows, device=rows.device)
    block = maxima.argmax(-1)
    inside = blocks[index, block]  # [R, size], a copy
    inner = inside.argmax(-1)
    best = inside[index, inner]
    inside[index, inner] = -torch.inf
    maxima[index, block] = inside.amax(-1)
    second = maxima.amax(-1)
    return block * size + inner, (best - second).masked_fill(second == -torch.inf, torch.inf)


def _kernels_for(rows: torch.Tensor) -> Kernels | None:
    is_plain = rows.device.type == "cpu" and rows.dtype is torch.float32 and rows.stride(1) == 1
    return shared_kernels() if is_plain else None


def _native_top(
    kernels: Kernels, rows: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows, width = rows.shape
    values = torch.empty((num_rows, count))
    ids = torch.empty((num_rows, count), dtype=torch.int64)
    kernels.top(
        *(rows.data_ptr(), rows.stride(0), num_rows, width, count),
        *(values.data_ptr(), ids.data_ptr()),
    )
    return values, ids

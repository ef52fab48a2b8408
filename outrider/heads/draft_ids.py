"""Which target id a row of a head's logits stands for."""

import torch

from outrider.heads.folder import HeadFolder


def ids_of_offsets(folder: HeadFolder, vocab_size: int, num_rows: int) -> torch.Tensor:
    """Return the target id of every row from ``d2t``, which states id - row; [D] int64.

    Without ``d2t`` every id has its row. ``t2d``, where it is there, must say the same.

    Raises: ValueError naming the tensor if an id is out of range or stands twice.
    """
    rows = torch.arange(num_rows)
    if folder.has("d2t"):
        ids = rows + folder.take_ids("d2t", [num_rows])
    elif num_rows == vocab_size:
        ids = rows
    else:
        raise ValueError(
            f"{folder.path}: missing tensors d2t: {num_rows} rows of logits stand for some of "
            f"{vocab_size} ids"
        )
    check_ids(folder, "d2t", ids, vocab_size)
    if folder.has("t2d"):
        stated = folder.take_ids("t2d", [vocab_size]).bool()
        drafted = torch.zeros(vocab_size, dtype=torch.bool)
        drafted[ids] = True
        if not torch.equal(stated, drafted):
            first = int((stated != drafted).nonzero()[0])
            raise folder.wrong_tensor(
                "t2d", f"contradicts d2t at target id {first}: {bool(stated[first])}"
            )
    return ids


def ids_of_map(folder: HeadFolder, vocab_size: int, num_rows: int) -> torch.Tensor:
    """Return the target id of every row from ``token_map``, without it all ids; [D] int64.

    Raises: ValueError naming the tensor.
    """
    if not folder.has("token_map"):
        if num_rows != vocab_size:
            raise ValueError(
                f"{folder.path}: missing tensors token_map: {num_rows} rows of logits stand for "
                f"some of {vocab_size} ids"
            )
        return torch.arange(vocab_size)
    ids = folder.take_ids("token_map", [num_rows])
    check_ids(folder, "token_map", ids, vocab_size)
    return ids


def check_ids(folder: HeadFolder, name: str, ids: torch.Tensor, vocab_size: int) -> None:
    """Raises: ValueError naming row and id if one is outside the vocabulary or stands twice."""
    outside = ((ids < 0) | (ids >= vocab_size)).nonzero()
    if len(outside):
        row = int(outside[0])
        raise folder.wrong_tensor(
            name, f"gives row {row} the target id {int(ids[row])}, expected 0 to {vocab_size - 1}"
        )
    twice = (torch.bincount(ids) > 1).nonzero()
    if len(twice):
        raise folder.wrong_tensor(name, f"gives several rows the target id {int(twice[0])}")

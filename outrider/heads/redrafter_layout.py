"""The recurrent drafter as ``python -m outrider.checkpoints assemble`` writes it."""

from outrider.heads.draft_ids import ids_of_map
from outrider.heads.folder import HeadFolder
from outrider.heads.loaded import LoadedHead
from outrider.heads.medusa_layouts import last_tap, num_positions
from outrider.heads.redrafter import ReDrafterConfig, ReDrafterHead


def read_redrafter(folder: HeadFolder) -> LoadedHead:
    """Return the drafter of a folder; Raises: ValueError naming a key or a tensor."""
    hidden_size, vocab_size = folder.size("hidden_size"), folder.size("vocab_size")
    folder.check_against_target(hidden_size=hidden_size, vocab_size=vocab_size)
    num_rows = folder.size("draft_vocab_size", vocab_size)
    rows = folder.take("lm_head.weight", [num_rows, hidden_size])
    ids = ids_of_map(folder, vocab_size, num_rows)
    order = ids.argsort()
    embeddings = folder.take("embed_tokens.weight", [vocab_size, hidden_size])
    taps = last_tap(folder)
    try:
        config = ReDrafterConfig(
            hidden_size=hidden_size,
            state_size=folder.size("state_size"),
            exit_dim=folder.size("exit_dim"),
            num_draft_layers=folder.size("num_draft_layers"),
            vocab_size=vocab_size,
            tap_layers=taps,
            draft_ids=tuple(ids[order].tolist()),
            rnn=folder.switch("rnn"),
        )
    except ValueError as error:
        if str(folder.config_path) in str(error):
            raise
        raise ValueError(f"{folder.config_path}: {error}") from error
    module = ReDrafterHead(config)
    folder.fill(module)
    folder.refuse_leftovers()
    return LoadedHead(
        kind="redrafter",
        module=module,
        embeddings=embeddings,
        lm_head=rows[order].contiguous(),
        draft_ids=ids[order],
        tap_layers=taps,
        target_hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_position_embeddings=num_positions(folder),
        target_weights_digest=folder.target_weights_digest,
    )

"""A quantised GGUF file turned into a plain folder of safetensors weights and tokenizer files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.checkpoints.folder import make_once

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def convert_gguf(gguf: Path, folder: Path) -> Path:
    """Return the folder with the file's model in bfloat16, made where it is missing.

    Needs the packages gguf and transformers; takes about half a minute for 135 M parameters.

    Raises: ValueError if the file's tokenizer names a pre-tokenizer that is not known here.
    """

    def fill(temporary: Path) -> None:
        _save_tokenizer(gguf, temporary)
        _save_model(gguf, temporary)

    return make_once(folder, fill)


def _save_model(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    quantised = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # The loaded model remembers that it was quantised and refuses to be saved; a new one does not.
    config = AutoConfig.from_pretrained(**source)
    config.dtype = torch.bfloat16
    config.__dict__.pop("_model_name_or_path", None)  # the file's title, no path at all
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(quantised.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    model.save_pretrained(folder)


def _save_tokenizer(gguf: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    _restore_pre_tokenizer(tokenizer.backend_tokenizer, _pre_tokenizer_name(gguf))
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    notes = ("is_local", "local_files_only", "backend", "model_max_length")
    config = {k: v for k, v in config.items() if k not in notes}
    # A model-specific class would rebuild the tokenizer its own way and forget what the file says.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _restore_pre_tokenizer(tokenizer: "Tokenizer", name: str) -> None:
    """Set what a GGUF file only names and what transformers replaces by the plain byte level.

    Raises: ValueError if the name is not known here.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    if name == "smollm":
        digits = Digits(individual_digits=True)
        tokenizer.pre_tokenizer = Sequence([digits, ByteLevel(add_prefix_space=False)])
    elif name not in ("gpt-2", "default"):
        raise ValueError(f"the GGUF file's pre-tokenizer {name!r} is not known here")


def _pre_tokenizer_name(gguf: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    return "default" if field is None else str(field.contents())

"""The chat template among a model's files, and its digest."""

from outrider.identity.files import TokenizerFiles
from outrider.identity.tokenizer import text_digest


def chat_template(files: TokenizerFiles) -> str | None:
    """Return the template's text, of several the one named "default", None where there is none.

    A file of its own goes before the entry in ``tokenizer_config.json``, as in transformers.
    """
    if (text := files.text("chat_template.jinja")) is not None:
        return text
    value = files.json("tokenizer_config.json").get("chat_template")
    if isinstance(value, list):
        value = {entry["name"]: entry["template"] for entry in value}
    if isinstance(value, dict):
        value = value.get("default")
    return value if isinstance(value, str) else None


def template_lines(files: TokenizerFiles) -> list[str]:
    """Return the template's lines; none where there is no template.

    Jinja itself levels line ends and drops one line end at the end of the text.
    """
    text = chat_template(files)
    if text is None:
        return []
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n")


def chat_template_digest(files: TokenizerFiles) -> str:
    """Return the template's digest in hexadecimal; having none is compared like any other."""
    return text_digest("\n".join(template_lines(files)))

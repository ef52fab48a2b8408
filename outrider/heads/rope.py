"""Rotary position settings of a published head, in the words of transformers' rope_parameters."""

from typing import Any

from outrider.heads.folder import HeadFolder, Target

NEEDED = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}
"""By supported type: settings without which it says nothing."""


def rope_of(folder: HeadFolder) -> dict[str, Any]:
    """Return the head's rotary settings; the base is the target's where the head states none.

    Raises: ValueError naming a setting that is missing, unsupported or unlike the target's.
    """
    stated = _stated(folder, folder.config)
    rope_type = stated.setdefault("rope_type", stated.pop("type", "default"))
    stated.pop("type", None)
    if rope_type not in NEEDED:
        raise folder.wrong_config(
            "rope_type", f"is {rope_type!r}, expected one of {', '.join(NEEDED)}"
        )
    for key in NEEDED[rope_type]:
        if not isinstance(stated.get(key), int | float):
            raise folder.wrong_config(key, f"is {stated.get(key)!r}, but {rope_type} needs it")
    partial = stated.get("partial_rotary_factor", folder.config.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise folder.wrong_config("partial_rotary_factor", f"is {partial}, expected 1")
    if "mrope_section" in stated:
        raise folder.wrong_config("mrope_section", "is set, expected one position per token")
    stated["rope_theta"] = _theta(folder, stated.get("rope_theta"))
    return stated


def _stated(folder: HeadFolder, config: Any) -> dict[str, Any]:
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if value is not None:
            if not isinstance(value, dict):
                raise folder.wrong_config(key, f"is {value!r}, expected an object")
            return {"rope_theta": config.get("rope_theta"), **value}
    return {"rope_theta": config.get("rope_theta")}


def _theta(folder: HeadFolder, stated: Any) -> float:
    there = None if folder.target is None else _theta_of(folder.target)
    if stated is None:
        folder.needed_target("rope_theta")
        if there is None:
            raise ValueError(f"neither {folder.path} nor its target states a rope_theta")
        return there
    if not isinstance(stated, int | float) or stated <= 0:
        raise folder.wrong_config("rope_theta", f"is {stated!r}, expected a positive number")
    if there is not None and there != stated:
        raise folder.wrong_config("rope_theta", f"is {stated}, but that of its target is {there}")
    return float(stated)


def _theta_of(target: Target) -> float | None:
    parameters = target.config.get("rope_parameters") or {}
    stated = parameters.get("rope_theta", target.config.get("rope_theta"))
    return float(stated) if isinstance(stated, int | float) else None

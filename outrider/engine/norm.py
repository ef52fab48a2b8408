"""RMS norms on the native kernel, for modules that prove to be one."""

import torch
from torch import nn

from outrider.kernels import TYPE_CODES, Kernels

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2}  # relative; two units of the last place


class NativeRMSNorm(nn.Module):
    """Scales rows to unit mean square, then by the weight (Gemma: by 1 + weight)."""

    def __init__(self, weight: nn.Parameter, eps: float, *, gemma: bool, kernels: Kernels) -> None:
        super().__init__()
        self.weight = weight
        self.variance_epsilon = self.eps = eps
        self.gemma = gemma
        self._call = kernels.rms_norm
        self._code = TYPE_CODES[weight.dtype]
        self._type = weight.dtype
        self._pointer = weight.data_ptr()
        self._k = weight.numel()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x and the result [..., k]."""
        if x.dtype is not self._type:
            raise TypeError(f"a norm of {self._type} was given {x.dtype}")
        if not x.is_contiguous():
            x = x.contiguous()
        k = self._k
        y = torch.empty_like(x)
        self._call(
            *(x.data_ptr(), k, self._pointer, y.data_ptr(), x.numel() // k, k),
            *(self._code, self.eps, self.gemma),
        )
        return y


def replace_norms(module: nn.Module, kernels: Kernels) -> int:
    """Replace the RMS norms below ``module``; returns how many there are now."""
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            native = _native_of(child, kernels)
            if native is not None:
                setattr(parent, name, native)
                replaced += 1
    return replaced


def _native_of(module: nn.Module, kernels: Kernels) -> NativeRMSNorm | None:
    if not type(module).__name__.endswith("RMSNorm") or isinstance(module, NativeRMSNorm):
        return None
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, nn.Parameter) or weight.ndim != 1 or not isinstance(eps, float):
        return None
    if weight.dtype not in TYPE_CODES or weight.device.type != "cpu":
        return None
    if len(list(module.parameters())) != 1:
        return None
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(3, weight.numel(), generator=generator).to(weight.dtype)
    expected = module(probe)
    for gemma in (False, True):
        native = NativeRMSNorm(weight, eps, gemma=gemma, kernels=kernels)
        got = native(probe)
        scale = expected.float().abs().max().clamp_min(1e-30)
        error = (got.float() - expected.float()).abs().max() / scale
        if expected.dtype is got.dtype and error < TOLERANCES[weight.dtype]:
            return native
    return None

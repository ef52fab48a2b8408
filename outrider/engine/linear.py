"""Linear layers that compute a row the same way however many rows there are."""

import ctypes
from collections.abc import Sequence

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from outrider.kernels import TYPE_CODES, Kernels, Segment

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class NativeLinear(nn.Linear):
    """``nn.Linear`` on the native kernel; it shares the weight of the module it was."""

    kernels: Kernels
    group: "LinearGroup"
    group_index: int
    output_type: torch.dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.group.output(self.group_index, input)


class LinearGroup:
    """Linears that read the same input (q, k, v or gate, up): the first call computes all.

    The others take their part if they are given the very same tensor, else they compute alone.
    """

    def __init__(self, members: list[NativeLinear], kernels: Kernels) -> None:
        self._call = kernels.linear
        self._threads = kernels.threads
        self._type = members[0].weight.dtype
        self._code = TYPE_CODES[self._type]
        self._output_type = members[0].output_type
        self._output_code = TYPE_CODES[self._output_type]
        self._k = members[0].in_features
        self._widths = [member.out_features for member in members]
        self._alive = [(m.weight, m.bias) for m in members]
        self._biases = [None if m.bias is None else m.bias.detach().float() for m in members]
        self._segments = (Segment * len(members))()
        for index, member in enumerate(members):
            segment, bias = self._segments[index], self._biases[index]
            segment.w = member.weight.data_ptr()
            segment.bias = 0 if bias is None else bias.data_ptr()
            segment.n = segment.ldy = member.out_features
        self._address = ctypes.addressof(self._segments)
        self._input: torch.Tensor | None = None
        self._waiting: dict[int, torch.Tensor] = {}

    def output(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [..., k]; returns [..., n of member index]."""
        if x is self._input and index in self._waiting:
            taken = self._waiting.pop(index)
            if not self._waiting:
                self._input = None
            return taken
        if index == 0 and len(self._widths) > 1:
            outputs = self._compute(x, range(len(self._widths)))
            self._input = x
            self._waiting = dict(enumerate(outputs))
            return self._waiting.pop(0)
        return self._compute(x, (index,))[0]

    def _compute(self, x: torch.Tensor, members: range | tuple[int, ...]) -> list[torch.Tensor]:
        if x.dtype is not self._type:
            raise TypeError(f"a linear of {self._type} was given {x.dtype}")
        if not x.is_contiguous():
            x = x.contiguous()
        lead = x.shape[:-1]
        outputs = []
        for index in members:
            y = torch.empty((*lead, self._widths[index]), dtype=self._output_type)
            self._segments[index].y = y.data_ptr()
            outputs.append(y)
        k = self._k
        self._call(
            *(x.data_ptr(), k, x.numel() // k, k, self._code, self._output_code),
            self._address + members[0] * ctypes.sizeof(Segment),
            *(len(outputs), self._threads),
        )
        return outputs


def replace_linears(
    module: nn.Module, kernels: Kernels, *, heads: Sequence[nn.Module | None]
) -> int:
    """Turn the linears below ``module`` into native ones in place; the heads return float32.

    Returns how many there are now. Subclasses (quantised layers) are left alone.
    """
    replaced = 0
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is Conv1D and child.weight.dtype in TYPE_CODES:
                setattr(parent, name, _from_conv1d(child))
    for child in list(module.modules()):
        if type(child) is not nn.Linear or child.weight.dtype not in TYPE_CODES:
            continue
        if child.weight.device.type != "cpu" or not child.weight.is_contiguous():
            continue
        child.__class__ = NativeLinear
        assert isinstance(child, NativeLinear)
        child.kernels = kernels
        child.output_type = torch.float32 if any(child is h for h in heads) else child.weight.dtype
        child.group, child.group_index = LinearGroup([child], kernels), 0
        replaced += 1
    for parent in module.modules():
        for names in SIBLINGS:
            members = [getattr(parent, name, None) for name in names]
            if all(isinstance(member, NativeLinear) for member in members):
                _join([member for member in members if isinstance(member, NativeLinear)], kernels)
    return replaced


def _join(members: list[NativeLinear], kernels: Kernels) -> None:
    first = members[0]
    if any(m.in_features != first.in_features for m in members):
        return
    if any(m.weight.dtype is not first.weight.dtype for m in members):
        return
    group = LinearGroup(members, kernels)
    for index, member in enumerate(members):
        member.group, member.group_index = group, index


def _from_conv1d(module: Conv1D) -> nn.Linear:
    """GPT-2's transposed linear; its weight is copied once into the usual layout."""
    k, n = module.weight.shape
    linear = nn.Linear(k, n, bias=module.bias is not None, device="meta")
    linear.weight = nn.Parameter(module.weight.detach().t().contiguous(), requires_grad=False)
    if module.bias is not None:
        linear.bias = module.bias
    return linear

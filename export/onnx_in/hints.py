"""What operators that are not read usually are, and what is supported in their place: for the message that refuses them."""

from __future__ import annotations

from . import activations
from .values import Form, Function, Scores

FUNCTIONS = frozenset(
    "Acos Acosh Asin Asinh Atan Atanh BiasSplitGelu Celu Ceil Cos Cosh Elu Floor HardSigmoid HardSwish LeakyRelu Mish PRelu Round Selu Shrink Sign Sin Sinh "
    "Softsign Tan ThresholdedRelu".split()
)
QUANTIZED = frozenset(
    "ConvInteger DynamicQuantizeLinear DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat QAttention QGemm QLinearConv QLinearMatMul QuantizeLinear".split()
)
RECURRENT = frozenset("GRU LSTM RNN LinearAttention CausalConvWithState".split())
SEQUENCES = frozenset("ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceInsert SequenceErase SequenceLength SplitToSequence".split())
EXPERTS = frozenset("MoE QMoE TopK ScatterElements ScatterND NonZero GroupedMatMul".split())
RANDOM = frozenset("Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split())

KINDS = (
    (FUNCTIONS, "an activation function {op}", activations.SUPPORTED),
    (QUANTIZED, "activations that the graph quantizes", "float graphs, and weights behind DequantizeLinear, MatMulNBits or GatherBlockQuantized; export before quantizing"),
    (RECURRENT, "a recurrence over tokens", "tokens mixed by attention with a softmax"),
    (frozenset(["Conv", "ConvTranspose", "AveragePool", "MaxPool", "GlobalAveragePool"]), "a convolution or pooling", "in models of images one convolution that cuts patches"),
    (SEQUENCES, "a sequence of tensors", "Split and Concat"),
    (EXPERTS, "a choice by values, as in a mixture of experts", "the same linears for every token"),
    (RANDOM, "random numbers", "graphs exported for inference"),
    (frozenset(["BatchNormalization", "GroupNormalization", "InstanceNormalization", "LpNormalization"]), "a norm {op}", "layer norms and RMS norms of a token"),
)
USUAL = "the usual spellings of norms, activations, linears, rotations and attention (docs/onnx.md)"
OF_SCORES = "one positive scale, a softcap, masks and biases made from positions, a softmax over all keys"


def hint(op: str, arguments: list, look: str) -> tuple[str, str]:
    """(what an operator on these arguments is, what is supported). look: the arguments in a message."""
    if any(isinstance(a, Scores) for a in arguments):
        return f"on {look}", OF_SCORES
    for operators, found, supported in KINDS:
        if op in operators:
            return f"{found.format(op=op)}, on {look}", supported
    if op == "Softmax" and isinstance(arguments[0], (Form, Function)):
        return f"a softmax of no product of q and k, on {look}", "attention, and no routers of experts"
    return f"on {look}", USUAL

"""The compiler: its passes in order, from a canonical model to an integer program."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..chat.form import Derived
from ..export import CanonicalModel
from ..program import Program
from . import options as option_rules
from .assemble import Assembly
from .chat_tensors import add_chat, derive_chat, eos_with_answer
from .calibrate import calibrate, replay
from .loss import four_bit_warning
from .match import match
from .options import SOURCE, Options
from .pictures import calibration_images, selftest_image
from .plan import plan
from .selftest import digest, selftest_ids
from .steps import FloatProgram
from .text import calibration_ids
from .tokenizer_tensors import add_tokenizer

Progress = Callable[[str, int, int], None]


@dataclass
class Compiled:
    """A program with what led to it: the float operators, the options, the chosen F's (value name → F) and the tokens or
    images used (uint8 [height, width, channels], [n, height, width, channels]).
    eos: the ids that end a text. chat: what was found of the chat template, if there is one."""

    program: Program
    source: FloatProgram
    options: Options
    choices: dict[str, int]
    selftest: list[int] | np.ndarray
    calibration: list[int] | np.ndarray
    eos: tuple[int, ...] = ()
    chat: Derived | None = None


def compile_model(
    canonical: CanonicalModel,
    *,
    weights: str | None = None,
    activations: str = "a16",
    kv: str = "kv16",
    context: int | None = None,
    weights_for: Mapping[str, str] | None = None,
    calibration: str | os.PathLike | Iterable[int] | None = None,
    choices: Mapping[str, int] | None = None,
    tokenizer: str | None = SOURCE,
    chat_template: str | None = SOURCE,
    progress: Progress | None = None,
) -> Compiled:
    """Compile a canonical model into an integer program, keeping what was decided on the way.

    weights: "source" keeps the integers of a quantized source (the default for those), "w8g32" (else the default), "w8", or
    "w4g32", which a float source loses accuracy by (a warning says how much); activations: "a16", or "a8g32" (int8 in groups of 32 into
    matrices but for down projections: faster where there are int8 dot products, and less accurate); kv: "kv16" or "kv8"; context: most tokens of a session (default: the model's).
    weights_for: {glob of initializers' names: format} for matrices that need another one; the last that matches decides.
    calibration: a text, a path or token ids (default: the project's own text); of an image model images or paths of them. choices: F of every value, recorded by an
    earlier compilation, instead of calibrating. tokenizer: "source", or None for a program that knows token ids only. chat_template: "source", or None to leave it out. progress(what, done, total) is told how far it is.
    Raises UnsupportedError for a bad option or anything in the graph that is not understood (naming the node),
    FormatError for a contradiction in the source.
    """
    tell = progress or (lambda what, done, total: None)
    weights = option_rules.default_weights(weights, canonical)
    options = option_rules.check(weights=weights, activations=activations, kv=kv, context=context, limit=canonical.context, weights_for=weights_for)
    option_rules.check_chat_template(chat_template)
    source = match(canonical.model)
    if source.picture is not None:
        tokenizer = None
    option_rules.check_tokenizer(tokenizer, canonical)
    option_rules.check_length(options, canonical, source)
    option_rules.check_matrices(options, source)
    if source.picture is None:
        sample = calibration_ids(calibration, canonical.tokenizer, canonical.bos_id, source.vocab, options.context, source.pool is not None)
    else:
        sample = calibration_images(calibration, source.picture.shape)

    assembly = Assembly(source, options, canonical.grids)
    assembly.build(lambda done, total: tell("quantize", done, total))
    if choices is None:
        chosen = calibrate(assembly, sample, lambda done, total: tell("calibrate", done, total))
    else:
        chosen = replay(assembly, choices)

    program = assembly.program
    program.header.plan_width = plan(program)
    eos, chat = canonical.eos_ids, None
    if tokenizer is not None:
        if chat_template is not None and canonical.chat is not None:
            tell("chat template", 0, 1)
            chat = derive_chat(canonical.chat)
            eos = eos_with_answer(canonical.tokenizer, eos, chat)
            tell("chat template", 1, 1)
        add_tokenizer(program.header, canonical.tokenizer, source.vocab, eos, canonical.bos_id, assembly.add_tensor)
        if chat is not None:
            add_chat(program.header, chat, assembly.add_tensor)
    elif canonical.eos_ids:
        program.header.eos = assembly.add_tensor("tokenizer.eos", np.array(canonical.eos_ids, np.int32))
    if source.picture is None:
        test = selftest_ids(sample, source.vocab, options.context)
        stored = np.array(test, np.int32)
    else:
        test = selftest_image(source.picture.shape)
        stored = test.reshape(len(test), -1).view(np.int8)
    program.header.selftest = assembly.add_tensor("edgepos.selftest", stored)
    tell("self-test", 0, 1)
    program.header.digest = digest(program, test)
    tell("self-test", 1, 1)
    if "w4g32" in (options.weights, *dict(options.weights_for).values()) and not canonical.grids:
        warnings.warn(four_bit_warning(canonical, program, sample), stacklevel=2)
    return Compiled(program, source, options, chosen, test, sample, eos, chat)


def compile(canonical: CanonicalModel, **options) -> Program:
    """The integer program of a canonical model; options and errors are those of `compile_model`."""
    return compile_model(canonical, **options).program

"""Pass: the chat template as header words and tensors (docs/bundle.md, words 40 … 42)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from ..chat.form import Derived, derive
from ..chat.jinja import ChatTemplate
from ..export.tokenizers import CONTROL, TokenizerSpec
from ..program import Header


def derive_chat(template: ChatTemplate) -> Derived:
    """The form of a template; a warning says what it leaves out. Raises FormatError for a template that does not render."""
    derived = derive(template)
    if derived.form is None:
        warnings.warn(f"{template.origin}: the C runtime gets no chat form: {derived.reason}; Python renders it with Jinja", stacklevel=2)
    elif derived.reason:
        warnings.warn(f"{template.origin}: {derived.reason}: the chat form has none", stacklevel=2)
    return derived


def add_chat(header: Header, derived: Derived, add: Callable) -> None:
    """Fill the chat words of `header`; `add(name, array) -> index` stores a tensor."""
    if derived.form is not None:
        texts, joins, header.chat_flags = derived.form.tensors()
        header.chat_texts, header.chat_joins = add("chat.texts", texts), add("chat.joins", joins)


def eos_with_answer(spec: TokenizerSpec, eos: tuple[int, ...], derived: Derived) -> tuple[int, ...]:
    """`eos` and the token that ends an answer."""
    end = end_of_answer(spec, derived)
    return eos if end is None or end in eos else (*eos, end)


def end_of_answer(spec: TokenizerSpec, derived: Derived) -> int | None:
    """The control token that the template puts behind an assistant's content, or None."""
    text = derived.after_answer.lstrip().encode("utf-8")
    found = next((i for i in spec.added if spec.tokens[i] and text.startswith(spec.tokens[i])), None)  # the longest first
    return found if found is not None and spec.token_types[found] == CONTROL else None

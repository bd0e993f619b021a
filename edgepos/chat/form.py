"""The small form of a chat template (docs/bundle.md, "Chat"), and how it is found by asking Jinja."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import EdgePosError
from ..export.shorten import shorten
from .jinja import ChatTemplate, Message

ROLES = ("system", "user", "assistant")
TURN = ("user", "assistant", "user")
LINES, SPACE, ALWAYS = 1, 2, 4  # what goes behind a marker; also at the beginning of contents without it
LONGEST_MARKER = 64  # bytes
EDGE = ""  # the start on the left of a join, the answer on its right
NAMES = (EDGE, *ROLES)
CORE = {(EDGE, "user"), ("user", EDGE), ("user", "assistant"), ("assistant", "user")}
SYSTEM = {(EDGE, "system"), ("system", "user")}
LONGEST = 4  # messages of the orders that are all tried
MIXED = 60  # longer conversations, by chance
SPACED = "  spaces around \n\n"
TEXTS = (
    "Hello, how are you?", "two\n\nparagraphs", "def f(x):\n    return {'a': [x]}\n", SPACED, "  in front", "behind \n", "\n", "\t tab",
    "{{ messages }} {% if true %}{# no #}{% endif %}", "<b>&amp;</b> \"double\" 'single' \\n", "日本語 😀 é", "\u00a0\u2003\u001cspace\u0085", "0", "none",
)  # fmt: skip


@dataclass(frozen=True)
class ChatForm:
    """joins: (role on the left, on the right) -> text between their contents. before, behind: joins that take the white space
    before them (of the content on the left) or behind them. filled: roles whose contents must not be empty. marker: an assistant's
    content begins behind the last one in it ("" for none). marker_takes: LINES or SPACE, each also with ALWAYS, or 0."""

    joins: dict[tuple[str, str], str]
    before: frozenset[tuple[str, str]] = frozenset()
    behind: frozenset[tuple[str, str]] = frozenset()
    filled: frozenset[str] = frozenset()
    marker: str = ""
    marker_takes: int = 0

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation up to where its answer begins. Raises EdgePosError for one that the form does not have."""
        if self.marker and not messages:
            raise EdgePosError("a conversation without messages is not in the model's chat form")
        pairs, text = _pairs([m["role"] for m in messages]), ""
        for i, pair in enumerate(pairs):
            if pair not in self.joins:
                raise EdgePosError(f"message {i + 1}: {pair[1] or 'an answer'} after {pair[0] or 'nothing'} is not in the model's chat form")
            text += self.joins[pair]
            if i == len(messages):
                break
            content = messages[i]["content"]
            content = self._said(content) if self.marker and pair[1] == "assistant" else content
            content = content.lstrip() if pair in self.behind else content
            content = content.rstrip() if pairs[i + 1] in self.before else content
            if not content and pair[1] in self.filled:
                raise EdgePosError(f"message {i + 1}: an empty content of {pair[1]} is not in the model's chat form")
            text += content
        return text

    def _said(self, content: str) -> str:
        """An answer without what was thought before it."""
        _, found, _ = content.partition(self.marker)
        said = content.split(self.marker)[-1]
        if not found and not self.marker_takes & ALWAYS:
            return said
        return said.lstrip() if self.marker_takes & SPACE else said.lstrip("\n") if self.marker_takes & LINES else said

    def tensors(self) -> tuple[np.ndarray, np.ndarray, int]:
        """(texts int8 [n], joins int32 [16, 3], flags) as a bundle stores them."""
        blob, rows = b"", []
        for pair in itertools.product(NAMES, NAMES):
            text = self.joins.get(pair)
            takes = (pair in self.before) | (pair in self.behind) << 1
            if pair == (EDGE, EDGE) and self.marker:
                text, takes = self.marker, self.marker_takes
            encoded = b"" if text is None else text.encode("utf-8")
            rows.append((-1, 0, 0) if text is None else (len(blob), len(encoded), takes))
            blob += encoded
        flags = sum((role in self.filled) << i for i, role in enumerate(ROLES)) | bool(self.marker) << len(ROLES)
        return np.frombuffer(blob or b"\0", np.int8), np.array(rows, np.int32), flags


@dataclass(frozen=True)
class Derived:
    """form, or None and `reason`. Of a form, `reason` says what it leaves out ("" for nothing). after_answer: what follows an
    assistant's content before the next message, or "" where that cannot be told. needs_date: the template asks for it."""

    form: ChatForm | None
    reason: str
    after_answer: str
    needs_date: bool


def derive(template: ChatTemplate) -> Derived:
    """The form of a template, compared with Jinja. Raises FormatError for a template that does not render."""
    if template.needs_date():
        return Derived(None, "it asks for today's date", "", True)
    orders = [roles for n in range(1, LONGEST + 1) for roles in itertools.product(ROLES, repeat=n)]
    rendered = template.render_all([_marked(roles) for roles in orders])
    texts = {roles: text for roles, (text, _) in zip(orders, rendered.texts)}
    cut = {roles: _between(text, len(roles)) for roles, text in texts.items()}
    turns = cut[TURN]
    after = turns[2] if turns else ""
    if turns is None:
        return Derived(None, "it refuses user and assistant in turn, or repeats, leaves out or changes their contents", after, False)

    joins: dict[tuple[str, str], str] = {}
    for roles in sorted(orders, key=lambda roles: (not set(_pairs(roles)) <= CORE | SYSTEM, len(roles))):
        if cut[roles] is not None:
            for pair, text in zip(_pairs(roles), cut[roles]):
                joins.setdefault(pair, text)
    form, problem = _settle(ChatForm(joins), texts)
    if form is None:
        return Derived(None, problem, after, False)
    form, problem = _contents(form, template, rendered.constants)
    if form is None:
        return Derived(None, problem, after, False)
    return Derived(form, "" if (EDGE, "system") in form.joins else "its system messages have no place of their own", after, False)


def _marked(roles: Iterable[str], thought: str = "") -> list[Message]:
    """A conversation whose contents are found again; thought: what stands in front of an assistant's."""
    return [{"role": role, "content": f"{thought * (role == 'assistant')}mark{i}zq"} for i, role in enumerate(roles)]


def _pairs(roles: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip((EDGE, *roles), (*roles, EDGE)))


def _between(text: str | None, n: int) -> list[str] | None:
    """The texts before, between and behind n marks; None unless each is there once and in order."""
    parts = []
    for i in range(n):
        if text is None or text.count(f"mark{i}zq") != 1:
            return None
        before, _, text = text.partition(f"mark{i}zq")
        parts.append(before)
    return [*parts, text]


def _expected(form: ChatForm, messages: Sequence[Message]) -> str | None:
    try:
        return form.render(messages)
    except EdgePosError:
        return None


def _settle(form: ChatForm, texts: dict[tuple[str, ...], str | None], thought: str = "") -> tuple[ChatForm | None, str]:
    """`form` without the joins that do not hold wherever they stand."""
    while True:
        wrong = next((r for r, text in texts.items() if _expected(form, _marked(r, thought)) not in (None, text)), None)
        if wrong is None:
            used = {pair for roles in _orders(form) for pair in _pairs(roles)}
            return replace(form, joins={pair: text for pair, text in form.joins.items() if pair in used}), ""
        pairs = set(_pairs(wrong))
        blamed = (pairs - CORE - SYSTEM) or pairs & SYSTEM
        if not blamed:
            return None, f"its text around {', '.join(wrong)} depends on more than the neighbours' roles"
        form = replace(form, joins={pair: text for pair, text in form.joins.items() if pair not in blamed})


def _contents(form: ChatForm, template: ChatTemplate, constants: Sequence[str]) -> tuple[ChatForm | None, str]:
    """`form` with its rules for contents, compared with Jinja on many of them."""
    form = _thoughts(_spaces(form, template), template, constants)
    usual = ("system", *TURN) if (EDGE, "system") in form.joins else TURN
    roles = [role for role in ROLES if role in usual]
    marks = [*constants, *template.variables.values()]
    texts = [*TEXTS, *marks, *(f"a {mark} b" for mark in marks), *(f"x{mark}y{mark}" for mark in marks)]
    if form.marker:
        texts += [space + more for space in ("\n\n", " \n", "\u2003") for more in ("a", f"a{form.marker}", f"{form.marker}{space}b {space}", f"{form.marker} a{form.marker}{space}")]
    tries = [(role, text, _with_content(usual, role, text)) for role in roles for text in ("", *texts)]
    tries += [("", "", messages) for messages in _mixed(form, texts)]
    jinja = [text for text, _ in template.render_all([messages for *_, messages in tries]).texts]

    def differs(messages: list[Message], text: str | None) -> bool:
        return _expected(form, messages) not in (None, text)

    for (role, content, messages), text in zip(tries, jinja):
        if role and not content.strip() and (not content or form.before) and differs(messages, text):
            form = replace(form, filled=form.filled | {role})
    for (role, content, messages), text in zip(tries, jinja):
        if differs(messages, text):
            return None, f"what becomes of contents of {role} such as {shorten(content)} depends on more" if role else "longer conversations differ"
    return form, ""


def _spaces(form: ChatForm, template: ChatTemplate) -> ChatForm:
    """`form` with the joins that take white space, seen in the shortest order that each stands in."""
    orders: dict[tuple[str, str], tuple[str, ...]] = {}
    for roles in _orders(form):
        for pair in _pairs(roles):
            orders.setdefault(pair, roles)
    before, behind = set(), set()
    chosen = list(dict.fromkeys(orders.values()))
    spaced = [[{**m, "content": f" \n{m['content']} \n"} for m in _marked(roles)] for roles in chosen]
    cuts = {roles: _between(text, len(roles)) for roles, (text, _) in zip(chosen, template.render_all(spaced).texts)}
    for pair, roles in orders.items():
        at = _pairs(roles).index(pair)
        seen, join = cuts[roles], form.joins[pair]
        if seen is None:
            continue
        left, right = " \n" * (at > 0), " \n" * (at < len(roles))
        if seen[at] in (join, join + right) and left:
            before.add(pair)
        if seen[at] in (join, left + join) and right:
            behind.add(pair)
    return replace(form, before=frozenset(before), behind=frozenset(behind))


def _thoughts(form: ChatForm, template: ChatTemplate, constants: Sequence[str]) -> ChatForm:
    """`form` with the marker up to which the template drops contents of an assistant: one of its strings, such as </think>."""

    def same(contents: Sequence[str], expected: Sequence[str]) -> list[bool]:
        texts = template.render_all([_with_content(TURN, "assistant", content) for content in contents]).texts
        return [text == _expected(form, _with_content(TURN, "assistant", said)) for (text, _), said in zip(texts, expected)]

    marks = [mark for mark in constants if len(mark.encode("utf-8", "replace")) <= LONGEST_MARKER and not mark.isspace()]
    marker = next((mark for mark, dropped in zip(marks, same([f"lost{mark}kept" for mark in marks], ["kept"] * len(marks))) if dropped), "")
    if not marker:
        return form
    spaced, kept = "\n\n \nkept", ("\n\n \nkept", " \nkept", "kept")  # nothing, LINES, SPACE
    behind, in_front = same([f"lost{marker}{spaced}"] * 3, kept), same([spaced] * 3, kept)
    takes = behind.index(True) if True in behind else 0
    always = takes and in_front.index(True) == takes if True in in_front else False
    form, orders = replace(form, marker=marker, marker_takes=takes | ALWAYS * always), _orders(form)
    thought = f"<think>lost{marker}"
    texts = template.render_all([_marked(roles, thought) for roles in orders]).texts
    settled, _ = _settle(form, {roles: text for roles, (text, _) in zip(orders, texts)}, thought)
    return settled or form


def _orders(form: ChatForm) -> list[tuple[str, ...]]:
    """The orders of up to LONGEST messages that the form has, the shortest first."""
    every = (roles for n in range(1, LONGEST + 1) for roles in itertools.product(ROLES, repeat=n))
    return [roles for roles in every if set(_pairs(roles)) <= set(form.joins)]


def _with_content(roles: Sequence[str], role: str, content: str) -> list[Message]:
    return [{"role": r, "content": content if r == role else f"plain {i}"} for i, r in enumerate(roles)]


def _mixed(form: ChatForm, texts: Sequence[str]) -> list[list[Message]]:
    """Conversations of more turns, in orders that the form has, with any of the texts as contents."""
    rng = random.Random(1)
    orders = _orders(form)
    chosen = [(*roles, *("assistant", "user") * (rng.randrange(4) if roles[-1] == "user" else 0)) for roles in rng.choices(orders, k=MIXED)]
    return [[{"role": role, "content": rng.choice(texts)} for role in roles] for roles in chosen]

"""Chat templates in Jinja, as transformers' apply_chat_template renders them, in a process that can be stopped."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import EdgePosError, FormatError

WORKER = Path(__file__).with_name("jinja_worker.py")
CPU_SECONDS, MEMORY = 10, 1 << 29  # that the worker may use
MOST_SOURCE = 1 << 18  # characters of a template
SPARE_OUTPUT = 1 << 16  # characters a template may add to eight times the contents

Message = Mapping[str, str]


@dataclass(frozen=True)
class Rendered:
    """texts: of each conversation, (text, None) or (None, why not). constants: strings in the template."""

    texts: list[tuple[str | None, str | None]]
    constants: list[str]


@dataclass(frozen=True)
class ChatTemplate:
    """A template's source, the texts of the names it may use (bos_token …), and where it came from, for messages."""

    source: str
    variables: Mapping[str, str] = field(default_factory=dict)
    origin: str = "chat template"

    def render_all(self, conversations: Sequence[Sequence[Message]], date: bool = False) -> Rendered:
        """Render conversations, each up to where its answer begins. date: with strftime_now, which gives today's.

        Raises FormatError for a template that is too large, has a syntax error, or does not come to an end.
        """
        if len(self.source) > MOST_SOURCE:
            raise FormatError(f"{self.origin}: {len(self.source)} characters found, at most {MOST_SOURCE} are allowed for a chat template")
        longest = max((sum(len(m["content"]) for m in messages) for messages in conversations), default=0)
        job = {
            "template": self.source, "variables": dict(self.variables), "date": date, "most": 8 * longest + SPARE_OUTPUT,
            "conversations": [[dict(m) for m in messages] for messages in conversations],
        }  # fmt: skip
        try:
            done = subprocess.run([sys.executable, "-I", str(WORKER), str(CPU_SECONDS), str(MEMORY)], input=json.dumps(job).encode("ascii"), capture_output=True, timeout=6 * CPU_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise FormatError(f"{self.origin}: does not come to an end") from None
        except OSError as error:
            raise EdgePosError(f"{self.origin}: the process that renders it cannot be started ({error.strerror})") from None
        if done.returncode != 0:
            what = "does not come to an end or needs too much memory" if done.returncode < 0 else done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise FormatError(f"{self.origin}: {what}")
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise FormatError(f"{self.origin}: {answer['error']}")
        return Rendered([tuple(row) for row in answer["texts"]], answer["constants"])

    def needs_date(self) -> bool:
        """Whether it renders only with strftime_now. Raises FormatError when it does not render at all."""
        plain = [{"role": "user", "content": "Hello"}]
        (text, error), *_ = self.render_all([plain]).texts
        if text is not None:
            return False
        if self.render_all([plain], date=True).texts[0][0] is not None:
            return True
        raise FormatError(f"{self.origin}: does not render: {error}; mend it, or export without it (--no-chat-template)")

    def render(self, messages: Sequence[Message], controls: Sequence[str], date: bool) -> tuple[bytes, list[tuple[int, int]]]:
        """(text, parts of it that are contents and hold a text of `controls`), as UTF-8 and bytes [start, end).

        Such texts go through the template as marks that nobody can know, so that none of the template's own is mistaken for one.
        Raises EdgePosError with the template's reason when it refuses the conversation.
        """
        key = secrets.token_hex(8)
        marks = {text: f"\ue000{key}.{i}\ue001" for i, text in enumerate(sorted(filter(None, controls), key=len, reverse=True))}
        hidden = []
        for message in messages:
            content = message["content"]
            for text, mark in marks.items():
                content = content.replace(text, mark)
            hidden.append({**message, "content": content})
        text, error = self.render_all([hidden], date).texts[0]
        if text is None:
            raise EdgePosError(f"{self.origin} refuses this conversation: {error[:200]}")
        parts, spans = b"", []
        texts = {mark: text for text, mark in marks.items()}
        while key in text:
            before, _, rest = text.partition(f"\ue000{key}.")
            number, _, text = rest.partition("\ue001")
            parts += before.encode("utf-8", "replace")
            own = texts[f"\ue000{key}.{number}\ue001"].encode("utf-8")
            spans.append((len(parts), len(parts) + len(own)))
            parts += own
        return parts + text.encode("utf-8", "replace"), spans

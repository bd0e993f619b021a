"""`Session.generate` for every engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .embedding import check_output
from .errors import EdgePosError


class Generates:
    """Adds `generate` to a session. `Bundle.session` sets `tokenizer`, `reference` sets `make_tokenizer`."""

    tokenizer = None
    make_tokenizer = None

    def generate(
        self,
        prompt: str | bytes | Sequence[int],
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        *,
        repetition_penalty: float = 1.0,
        penalty_last: int = 0,
        stop: str | Iterable[str] = (),
        eos: bool | Iterable[int] = True,
    ) -> Iterator[str]:
        """Continue `prompt` and yield pieces of text as they are made: see edgepos.runtime.generate."""
        from .runtime.generate import generate

        check_output(self, embedding=False)
        return iter(
            generate(
                self, self.the_tokenizer(), prompt, max_new_tokens, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p,
                repetition_penalty=repetition_penalty, penalty_last=penalty_last, stop=stop, eos=eos,
            )
        )  # fmt: skip

    def the_tokenizer(self):
        """The session's tokenizer. Raises EdgePosError when the bundle has none."""
        if self.tokenizer is None and self.make_tokenizer is not None:
            self.tokenizer = self.make_tokenizer()
        if self.tokenizer is None:
            raise EdgePosError("this session has no tokenizer: the bundle carries none; evaluate token ids instead")
        return self.tokenizer

"""Acceptance of a real drafter without a model on real texts: a draft token is right where the text
goes on with it.

That is what the engine finds at temperature 0, token for token, as long as texts are what the
target wrote. Request i meets text i mod N, with its prompt and its length.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from smartspec.control import DrafterView
from smartspec.core.batch import NO_DRAFT, Draft, shorten
from smartspec.core.draft_columns import lengths_of
from smartspec.drafters.model_free import ModelFreeDrafter
from smartspec.sim.world.acceptance import AcceptanceClass, GroundTruthAcceptance, Places


@dataclass(frozen=True)
class Text:
    """A prompt and the target's text after it: int32 each, neither empty."""

    prompt: np.ndarray
    output: np.ndarray

    @property
    def token_ids(self) -> np.ndarray:
        return np.concatenate([self.prompt, self.output])


@lru_cache(maxsize=1)  # every policy and seed of a comparison reads the same file
def read_texts(path: str) -> list[Text]:
    """Texts of a JSONL file, one {"prompt_token_ids": [...], "output_token_ids": [...]} a line.
    ValueError names file and line."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the texts {path}: {error}") from error
    texts = [
        _text(f"{path}, line {number}", line)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not texts:
        raise ValueError(f"{path} holds no text")
    return texts


def _text(place: str, line: str) -> Text:
    try:
        data = json.loads(line)
        columns = [data[name] for name in ("prompt_token_ids", "output_token_ids")]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{place} is no object with prompt_token_ids and output_token_ids ({error!r})"
        ) from error
    for column in columns:
        if (
            not isinstance(column, list)
            or not column
            or not all(type(i) is int and 0 <= i < 2**31 for i in column)
        ):
            raise ValueError(
                f"{place}: prompt_token_ids and output_token_ids must be lists of token ids, not "
                "empty"
            )
    return Text(*(np.array(column, dtype=np.int32) for column in columns))


class TextAcceptance(GroundTruthAcceptance):
    """The drafts that one drafter finds in texts, and whether they are right. drafter: proposes and
    learns as in the engine. ValueError where it drafts a tree."""

    def __init__(self, texts: Sequence[Text], drafter: ModelFreeDrafter, *, seed: int = 0):
        super().__init__((AcceptanceClass(0.0),), drafter.max_draft_tokens, seed=seed)
        self._outputs = [text.output for text in texts]
        self._token_ids = [text.token_ids for text in texts]
        self._drafter = drafter
        # by request: at which output position, and what
        self._drafts: dict[int, tuple[int, Draft]] = {}
        self._num_told: dict[int, int] = {}  # by request, output tokens that the drafter has seen

    def begin(self, request_id: int, class_id: int = 0) -> None:
        """A request starts; its class does not matter here."""
        super().begin(request_id, class_id)
        self._num_told[request_id] = 0

    def end(self, request_id: int) -> None:
        if request_id in self._num_told:
            self._tell(request_id, len(self._outputs[request_id % len(self._outputs)]))
            del self._num_told[request_id]
        self._drafts.pop(request_id, None)
        super().end(request_id)

    def expected(self, at: Places) -> np.ndarray:
        """The same as conditional: a text is known to its end."""
        return self.conditional(at)

    def conditional(self, at: Places) -> np.ndarray:
        """1 where the text goes on with the token that was found, 0 elsewhere: float [R, K]."""
        is_right = np.zeros((len(at.request_ids), self.max_draft_tokens))
        for row, (request_id, position) in enumerate(at.pairs):
            self._tell(request_id, position)
            found_at, draft = self._drafts.get(request_id, (position, NO_DRAFT))
            if found_at == position and len(draft):
                following = self._following(request_id, position)[: len(draft)]
                is_right[row, : len(following)] = draft.token_ids[: len(following)] == following
        return is_right

    def found(self, at: Places) -> DrafterView:
        """The drafts that the drafter finds at these positions."""
        drafts = []
        for request_id, position in at.pairs:
            self._tell(request_id, position)
            drafts.append(self._propose(request_id, position))
            self._drafts[request_id] = position, drafts[-1]
        return DrafterView(
            lengths_of(drafts), np.array([draft.match_length for draft in drafts], dtype=np.int64)
        )

    def _propose(self, request_id: int, position: int) -> Draft:
        number = request_id % len(self._outputs)
        text = self._token_ids[number]
        so_far = text[: len(text) - len(self._following(request_id, position))]
        draft = shorten(self._drafter.propose(so_far), self.max_draft_tokens)
        if not draft.is_chain:
            raise ValueError(
                f"drafter {self._drafter.spec.name!r} drafts trees, and of a drafter without a "
                "model the simulator verifies chains alone: try it in the engine"
            )
        return draft

    def _following(self, request_id: int, position: int) -> np.ndarray:
        """The text after so many output tokens; a request that runs longer begins again."""
        output = self._outputs[request_id % len(self._outputs)]
        return output[position % len(output) :] if position > len(output) else output[position:]

    def _tell(self, request_id: int, position: int) -> None:
        """The drafter learns what has been emitted, in the same portions."""
        told = self._num_told[request_id]
        number = request_id % len(self._outputs)
        output, text = self._outputs[number], self._token_ids[number]
        if emitted := tuple(output[told:position].tolist()):
            self._drafter.learn(text[: len(text) - len(output) + told], emitted)
            self._num_told[request_id] = told + len(emitted)

"""Which draft tokens are right, and what the target says: by a rule, or as in recorded texts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from lib.vllm_lookup import lookup
from smartspec.sim.world.acceptance import GroundTruthAcceptance, Places
from smartspec.sim.world.class_spec import parse_classes

_LINE = list(range(10, 2010))  # what targets say: numbers in order
_PERIOD = 1000


class Acceptance(Protocol):
    """Requests are named by their numbers. positions: int [R], tokens that each has emitted."""

    def begin(self, number: int) -> None: ...

    def end(self, number: int) -> None: ...

    def num_right(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        """Leading right tokens of the longest draft there, int [R]."""

    def num_drafted(self, numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Tokens of the longest draft there, int [R]."""

    def confidence(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        """The drafter's confidence in each token: float [R, K]."""

    def tokens(self, number: int, position: int, count: int) -> list[int]:
        """What the target says there."""


class StatedAcceptance:
    """Acceptance by a rule, as the simulator has it (docs/simulation.md): it may fall with depth,
    differ by request, and change in time.

    acceptance: as `simulate --acceptance`. found_share: of positions at which a drafter without a
    model finds a draft.
    """

    def __init__(self, acceptance: str, max_draft_tokens: int, seed: int, found_share: float = 1.0):
        self._classes = tuple(
            replace(c, found_share=found_share) for c in parse_classes(acceptance)
        )
        self._acceptance = GroundTruthAcceptance(self._classes, max_draft_tokens, seed=seed)

    def begin(self, number: int) -> None:
        self._acceptance.begin(number, number % len(self._classes))

    def end(self, number: int) -> None:
        self._acceptance.end(number)

    def num_right(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        right = self._acceptance.num_right(Places(numbers, positions, now))
        return np.minimum(right, self.num_drafted(numbers, positions))

    def num_drafted(self, numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return self._acceptance.found(Places(numbers, positions)).lengths

    def confidence(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        at = Places(numbers, positions, now)
        return self._acceptance.confidence(at, self._acceptance.conditional(at))[0]

    def tokens(self, number: int, position: int, count: int) -> list[int]:
        first = (31 * number + position) % _PERIOD
        return _LINE[first : first + count]


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and of what a target wrote after it."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def read_texts(path: Path) -> list[Text]:
    """Texts that `vllm_plugin.py lengths` has made. ValueError if the file holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["texts"]
        texts = [
            Text(tuple(prompt), tuple(answer))
            for task in found.values()
            for prompt, answer in task
            if answer
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds no texts ({error!r}): make them with `vllm_plugin.py lengths`"
        ) from error
    if not texts:
        raise ValueError(f"{path} holds no texts: make them with `vllm_plugin.py lengths`")
    return texts


def _said(texts: Sequence[Text], number: int, position: int, count: int) -> list[int]:
    """Beyond the end of a text, zeros."""
    told = list(texts[number % len(texts)].answer[position : position + count])
    return told + [0] * (count - len(told))


class TextAcceptance:
    """Request i says text i mod N. Drafts are those of vLLM's prompt lookup in it, found once at
    the start."""

    def __init__(self, texts: Sequence[Text], max_draft_tokens: int):
        self._texts, self._longest = texts, max_draft_tokens
        columns = [self._outcomes(text) for text in texts]
        longest = max(len(column) for column in columns)
        padded = [np.pad(column, ((0, longest - len(column)), (0, 0))) for column in columns]
        self._drafted, self._right = np.moveaxis(np.stack(padded), 2, 0)

    def begin(self, number: int) -> None: ...

    def end(self, number: int) -> None: ...

    def num_right(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        return self._at(self._right, numbers, positions)

    def num_drafted(self, numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return self._at(self._drafted, numbers, positions)

    def confidence(self, numbers: np.ndarray, positions: np.ndarray, now: float) -> np.ndarray:
        raise ValueError(
            "a drafter without a model has no confidence, which adaptive verification needs: leave "
            "it out"
        )

    def tokens(self, number: int, position: int, count: int) -> list[int]:
        return _said(self._texts, number, position, count)

    def _at(self, table: np.ndarray, numbers: np.ndarray, positions: np.ndarray) -> np.ndarray:
        return table[numbers % len(self._texts), np.minimum(positions, table.shape[1] - 1)]

    def _outcomes(self, text: Text) -> np.ndarray:
        """Draft tokens, and leading right ones of them, after 0, 1, ... tokens of the answer: int
        [P, 2]."""
        outcomes = []
        for position in range(len(text.answer)):
            draft = lookup(text.prompt + text.answer[:position], self._longest)
            following = text.answer[position : position + len(draft)]
            is_right = [a == b for a, b in zip(draft, following, strict=False)]
            num_right = is_right.index(False) if False in is_right else len(is_right)
            outcomes.append((len(draft), num_right))
        return np.array(outcomes, dtype=np.int64)

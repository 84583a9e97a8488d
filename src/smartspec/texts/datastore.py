"""The way from files of texts to a datastore for a model: shards of training rows, JSONL, plain
text."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from smartspec.drafters.datastore import DatastoreHeader
from smartspec.drafters.datastore_build import LEAST_COUNT, NgramCounts, check_new, write_datastore
from smartspec.drafters.tokenizer_digest import quick_digest
from smartspec.engine.models.load import load_model
from smartspec.texts.shards import read_shard, tokenizer_digest, tokenizer_of

PIECE = 1 << 20  # characters of plain text that are tokenized together, and the rest of the line
# of files that are read in a folder; .txt and all others are plain text
SUFFIXES = (".npz", ".jsonl", ".txt")


@dataclass(frozen=True)
class Text:
    """A text to count."""

    token_ids: Sequence[int]  # int [n]
    start: int = 0  # tokens before it are context of the others, and not counted


def build_datastore(
    model: str,
    files: Sequence[Path],
    folder: Path,
    progress: Callable[[list[Path]], Iterator[Path]] = iter,
    least_count: int = LEAST_COUNT,
) -> DatastoreHeader:
    """Write a datastore of these files, or of those in these folders, for a model. progress: goes
    through the files.

    Raises ValueError naming the file, and the line, that cannot be used, OSError naming what cannot
    be read or written.
    """
    check_new(folder)
    paths = [path for given in files for path in _files(given)]
    loaded = load_model(model, dtype="auto", device="cpu", quantization="auto")
    reader, counts = TextReader(model, loaded.tokenizer), NgramCounts()
    for path in progress(paths):
        for text in reader.read(path):
            counts.add(np.asarray(text.token_ids), text.start)
    return write_datastore(
        folder,
        counts,
        least_count,
        model=model,
        tokenizer=quick_digest(loaded.tokenizer),
        vocab_size=loaded.vocab_size,
        sources=tuple(map(str, files)),
    )


def _files(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given]
    found = sorted(path for path in given.iterdir() if path.suffix in SUFFIXES)
    if not found:
        raise ValueError(f"{given} holds no texts: files there must end in {', '.join(SUFFIXES)}")
    return found


class TextReader:
    """Texts of files as the model's tokenizer writes them now: what the engine will see. Tokens of
    shards, too, are made text and tokens again, as another version may have made them."""

    def __init__(self, model: str, tokenizer: PreTrainedTokenizerBase):
        self._model, self._tokenizer = model, tokenizer

    def read(self, path: Path) -> Iterator[Text]:
        readers = {".npz": self._read_shard, ".jsonl": self._read_rows}
        return readers.get(path.suffix, self._read_plain)(path)

    def _read_shard(self, path: Path) -> Iterator[Text]:
        if tokenizer_of(path) not in ("", tokenizer_digest(self._tokenizer)):
            raise ValueError(
                f"{path} was made with another tokenizer than that of {self._model!r}: leave it out"
            )
        for row in read_shard(path):
            if row.token_ids.max() >= len(self._tokenizer):
                raise ValueError(
                    f"{path} has tokens that {self._model!r} does not know: leave it out"
                )
            answer = self._tokenizer.decode(
                row.token_ids[row.answer_start :],
                skip_special_tokens=False,
                clean_up_tokenization_spaces=False,
            )
            yield Text(
                [*row.token_ids[: row.answer_start].tolist(), *self._encode(answer)],
                row.answer_start,
            )

    def _read_rows(self, path: Path) -> Iterator[Text]:
        for number, line in enumerate(_lines(path), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict) or not any(
                isinstance(row.get(name), str) for name in ("answer", "text", "prompt")
            ):
                raise ValueError(
                    f'{path}, line {number} is no JSON object with a string "answer", "text" or '
                    '"prompt"'
                )
            yield self._text_of(row)

    def _text_of(self, row: dict) -> Text:
        """An answer after its prompt, as in the model's chat; else the text, or the prompt
        alone."""
        prompt, answer = row.get("prompt"), row.get("answer")
        if not isinstance(answer, str):
            text = row.get("text")
            return Text(self._encode(text if isinstance(text, str) else prompt))
        if not isinstance(prompt, str) or self._tokenizer.chat_template is None:
            return Text(self._encode(answer))
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        before = self._tokenizer.apply_chat_template(
            turns[:1], add_generation_prompt=True, tokenize=False
        )
        whole = self._tokenizer.apply_chat_template(turns, tokenize=False)
        after = whole[len(before) :] if whole.startswith(before) else answer
        context = self._encode(before)
        return Text([*context, *self._encode(after)], len(context))

    def _read_plain(self, path: Path) -> Iterator[Text]:
        piece, size = [], 0
        for line in _lines(path):
            piece.append(line)
            size += len(line)
            if size >= PIECE:
                yield Text(self._encode("".join(piece)))
                piece, size = [], 0
        if piece:
            yield Text(self._encode("".join(piece)))

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no text in UTF-8 ({error.reason} at byte {error.start}): leave it out"
        ) from error

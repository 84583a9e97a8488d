"""The stages of training a head, from names and folders."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lab.train.card import write_card
from lab.train.earlier_head import head_to_learn_on
from lab.train.export import export_rows
from lab.train.files import alone, write_whole
from lab.train.fit import CHECKPOINT, Training, TrainingSettings
from lab.train.generate import BLOCK_SIZE, GenerationLimits, Generator, NoDrafts, generate_shards
from lab.train.kinds import KINDS, start_of, taps_of, write
from lab.train.origin import check_target, check_tokenizer
from lab.train.prompts import ChatFormat, chat_format
from lab.train.recording import RecordingExecutor, RecordingRunner, signals_by
from lab.train.shards import num_answer_tokens, read_rows, shard_paths
from lab.train.signals import read_signals, signals_of, write_signals
from lab.train.vocabulary import coverage, draft_vocabulary
from smartspec.core.blocks import BlockManager
from smartspec.core.engine_core import EngineCore
from smartspec.core.scheduler import Scheduler
from smartspec.engine.drafting.head.eagle3 import default_taps
from smartspec.engine.models.checkpoint import locate, read_checkpoint
from smartspec.engine.models.load import load_model
from smartspec.engine.models.loaded_model import LoadedModel
from smartspec.engine.models.model_runner import ModelRunner
from smartspec.texts.shards import read_shard, tokenizer_digest
from smartspec.workload.prompts import read_prompts

MAX_BATCHED_TOKENS = 512
VOCABULARY = "draft_vocabulary.npy"


def generate_texts(
    model: str,
    data: Path,
    num_tokens: int,
    prompt_files: tuple[Path, ...],
    seed: int,
    report: Callable[[str], None],
) -> None:
    """Have the target write texts into folder data until it holds num_tokens answer tokens.
    prompt_files: see read_prompts; those that were not answered yet come first, in random order."""
    if (have := num_answer_tokens(data)) >= num_tokens:
        report(f"{data} holds {have} answer tokens already")
        return
    texts = [prompt.text for path in prompt_files for prompt in read_prompts(path)]
    with alone(data):
        report(f"loading {model}")
        loaded = load_model(model)
        check_tokenizer(data, model, loaded.tokenizer, report)
        generator = _generator(loaded, texts, data, seed, report)
        generate_shards(generator, data, num_tokens, tokenizer_digest(loaded.tokenizer), report)


def _generator(
    loaded: LoadedModel, texts: Sequence[str], data: Path, seed: int, report: Callable[[str], None]
) -> Generator:
    limits = GenerationLimits().within(loaded.max_model_len)
    chat = chat_format(loaded.tokenizer)
    executor = RecordingExecutor(_runner(loaded, limits))
    scheduler = Scheduler(
        BlockManager(
            limits.concurrency * limits.total // BLOCK_SIZE, BLOCK_SIZE, limits.concurrency
        ),
        max_batched_tokens=MAX_BATCHED_TOKENS,
        max_model_len=limits.total,
        max_draft_tokens=1,
    )
    core = EngineCore(scheduler, executor, NoDrafts())
    prompts = _unanswered(texts, data, chat, limits.prompt, seed, report)
    seed += len(shard_paths(data))  # what goes on does not begin again
    return Generator(core, executor, chat, loaded.eos_token_ids, limits, seed=seed, prompts=prompts)


def record_missing(model: str, data: Path, kind: str, report: Callable[[str], None]) -> None:
    """Compute the missing signals of shards, in a pass over each row: texts may come without
    signals, or without those that a head of this kind reads.

    Raises ValueError where there is nothing to learn from, or it was written by another model."""
    next(read_rows(data))
    missing = [path for path in shard_paths(data) if not signals_of(path).exists()]
    if not missing:
        return
    report(f"computing what {model} makes of {len(missing)} shards")
    with alone(data):
        loaded = load_model(model)
        check_tokenizer(data, model, loaded.tokenizer, report)
        longest = _check_rows(data, model, loaded.vocab_size, loaded.max_model_len)
        runner = ModelRunner(
            loaded, num_slots=1, max_len=longest, taps=taps_of(kind, loaded.num_layers)
        )
        for path in missing:
            rows = read_shard(path)
            write_signals(signals_of(path), [signals_by(runner, row) for row in rows], rows)


def train_head(
    model: str, data: Path, out: Path, settings: TrainingSettings, report: Callable[[str], None]
) -> None:
    """Train a head for the target on the texts in data, or go on doing so, and write it to folder
    out."""
    if settings.kind not in KINDS:
        raise ValueError(
            f"there is no head of kind {settings.kind!r}: use one of {', '.join(KINDS)}"
        )
    record_missing(model, data, settings.kind, report)
    source, files = locate(model)
    target, tokenizer = read_checkpoint(model, source, files, torch.float32, keep_blocks=False)
    config = target.config.get_text_config()
    check_tokenizer(data, model, tokenizer, report)
    _check_rows(
        data, model, target.get_input_embeddings().weight.shape[0], config.max_position_embeddings
    )
    taps = taps_of(settings.kind, config.num_hidden_layers)
    _check_signals(data, len(taps) * config.hidden_size, settings.kind)
    check_target(data, model, target, taps)
    with alone(out):
        training = _start(model, target, data, out, settings, report)
        architecture = type(target).__name__
        del target
        if training.resume(out):
            report(f"going on after {training.num_tokens} tokens")
        training.run(out, report)
        write(out, training.head, model, architecture)
        write_card(out, model, data, settings, training)


def _start(
    model: str,
    target: nn.Module,
    data: Path,
    out: Path,
    settings: TrainingSettings,
    report: Callable[[str], None],
) -> Training:
    """A training at its beginning, of an earlier head where settings name one. Otherwise its
    vocabulary is the one that folder out's checkpoint has, if there is one."""
    embedding, path = target.get_input_embeddings().weight.detach().clone(), out / VOCABULARY
    if settings.from_head is not None:
        if settings.kind != "eagle3":
            raise ValueError(
                f"from an earlier head only --kind eagle3 goes on, not {settings.kind}: leave one "
                "of both out"
            )
        taps = taps_of(settings.kind, target.config.get_text_config().num_hidden_layers)
        head = head_to_learn_on(model, Path(settings.from_head), taps)
        write_whole(path, lambda file: np.save(file, head.target_ids.numpy()))
        report(f"going on from {settings.from_head}")
        return Training(head, embedding, data, settings)
    if (out / CHECKPOINT).exists():
        try:
            ids = np.load(path)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}): delete {out}, or train into another folder"
            ) from error
    else:
        ids = draft_vocabulary(data, settings.draft_vocab_size, len(embedding))
        write_whole(path, lambda file: np.save(file, ids))
    report(
        f"{len(ids)} tokens in the draft vocabulary cover {coverage(data, ids):.1%} of the answers"
    )
    return Training(
        start_of(settings.kind, target, ids, data, settings.seed), embedding, data, settings
    )


def export_data(model: str, data: Path, out: Path, report: Callable[[str], None]) -> None:
    """Write the rows in data and what the target computes of them to folder out, as `speculators
    train` reads them."""
    report(f"loading {model}")
    loaded = load_model(model)
    check_tokenizer(data, model, loaded.tokenizer, report)
    longest = _check_rows(data, model, loaded.vocab_size, loaded.max_model_len)
    taps = (*default_taps(loaded.num_layers), loaded.num_layers)
    export_rows(ModelRunner(loaded, num_slots=1, max_len=longest, taps=taps), data, out, report)


def _unanswered(
    texts: Sequence[str],
    data: Path,
    chat: ChatFormat,
    longest: int,
    seed: int,
    report: Callable[[str], None],
) -> tuple[str, ...]:
    """The prompts that folder data has no answer to, in random order, without those that are longer
    than so many tokens."""
    if not texts:
        return ()
    answered = {
        row.token_ids[: row.answer_start].tobytes()
        for path in shard_paths(data)
        for row in read_shard(path)
    }
    encoded = [np.array(chat.encode(text), dtype=np.int32) for text in texts]
    is_short = [len(token_ids) <= longest for token_ids in encoded]
    is_new = [token_ids.tobytes() not in answered for token_ids in encoded]
    report(
        f"{len(texts)} prompts, {len(texts) - sum(is_short)} left out as longer than {longest} "
        f"tokens, {len(texts) - sum(is_new)} answered before"
    )
    order = np.random.default_rng(seed).permutation(len(texts)).tolist()
    return tuple([texts[i] for i in order if is_short[i] and is_new[i]])


def _check_rows(data: Path, model: str, vocab_size: int, max_len: int) -> int:
    """Tokens of the longest row. Raises ValueError where there is nothing to learn from, or it was
    written by another model."""
    longest = 0
    for row in read_rows(data):
        longest = max(longest, len(row.token_ids))
        if row.token_ids.max() >= vocab_size or longest > max_len:
            raise ValueError(
                f"{data} has a row of {len(row.token_ids)} tokens up to id {row.token_ids.max()}, "
                f"{model!r} has {vocab_size} tokens and {max_len} positions: generate texts with "
                "this model"
            )
    return longest


def _check_signals(data: Path, feature_size: int, kind: str) -> None:
    """Raises ValueError where a shard's signals are those of another kind of head."""
    for path in shard_paths(data):
        size = read_signals(signals_of(path), read_shard(path))[0].features.shape[1]
        if size != feature_size:
            raise ValueError(
                f"{signals_of(path)} holds {size} values a token, a head of kind {kind} reads "
                f"{feature_size}: copy {data}/tokens to a folder of its own, where its signals are "
                "computed"
            )


def _runner(loaded: LoadedModel, limits: GenerationLimits) -> RecordingRunner:
    taps = default_taps(loaded.num_layers)
    return RecordingRunner(loaded, num_slots=limits.concurrency, max_len=limits.total, taps=taps)

"""Prompts the target writes itself: user turns sampled after its own user header, and tasks on
texts it has written.

The method for user turns is Magpie's (arXiv 2406.08464): an instruction-tuned model that is given a
conversation up to the user's header writes what users write there.
"""

from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

# Kinds of requested texts, so that texts to work on differ in kind as well as in words.
TEXTS = (
    "Write a short newspaper article about {}.",
    "Write an encyclopedia paragraph about {}.",
    "Write an e-mail to a colleague about {}.",
    "Write a short story about {}.",
    "Write a paragraph in German about {}.",
    "Write a paragraph in French about {}.",
    "Write a word problem for a mathematics class about {}. Do not solve it.",
    "Write a Python function that has to do with {}.",
    "List ten facts about {}.",
    "Explain {} to a student.",
)
SUBJECTS = (
    "a football match", "an election", "the weather", "a bank robbery", "the history of Rome",
    "volcanoes", "trains", "a family dinner", "saving money", "a court case", "space travel",
    "the human heart", "bees", "a music festival", "the price of apples", "a broken computer",
    "sorting a list of names", "a hospital", "painting a house", "oceans", "a new school",
    "the stock market", "learning to swim", "a lost dog", "counting words in a file", "climate",
    "a famous scientist", "buying a car", "a marathon", "World War II", "bread", "a bicycle shop",
    "mobile phones", "a film director", "a library", "dates and calendars", "a vegetable garden",
    "an airport", "chess", "electricity",
)  # fmt: skip
TASKS = (
    "Translate the following text into English.\n\n{}",
    "Translate German to English: {}",
    "Translate this into German:\n{}",
    "Summarize: {}",
    "Summarize the following text in three sentences.\n\n{}",
    "What are the key points of this text?\n{}",
    "{}\n\nWhat is this text about? Answer with reference to it.",
    "Answer a question a reader of this text may have, using the text only.\n\nText: {}\n\nAnswer:",
    "Rewrite the following text so that it is easier to read:\n\n{}",
    "Correct any mistakes and return the whole text:\n{}",
    "Continue this text.\n\n{}",
    "{}",
)


@dataclass(frozen=True)
class ChatFormat:
    """Token ids around a user's turn in a model's chat template: header + user text + footer, then
    the answer."""

    tokenizer: PreTrainedTokenizerBase
    header: str
    footer: str

    def encode(self, text: str) -> list[int]:
        """The conversation up to where the answer begins."""
        return self.tokenizer(self.header + text + self.footer, add_special_tokens=False)[
            "input_ids"
        ]

    def encode_header(self) -> list[int]:
        """The conversation up to where the user's text begins."""
        return self.tokenizer(self.header, add_special_tokens=False)["input_ids"]


def chat_format(tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
    """Raises ValueError where the model has no chat template that shows the user's text as it
    is."""
    mark = "\u241fUSER\u241f"
    if tokenizer.chat_template is None:
        raise ValueError(
            "this model has no chat template: give conversations of your own with --prompts and a "
            "model that was trained to answer them"
        )
    messages = [{"role": "user", "content": mark}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    header, found, footer = text.partition(mark)
    if not found:
        raise ValueError(
            "this model's chat template changes what users write: user turns cannot be sampled "
            "from it"
        )
    return ChatFormat(tokenizer, header, footer)


def text_request(rng: np.random.Generator) -> str:
    """A prompt that requests a text of some kind, for a task to work on later."""
    return str(rng.choice(TEXTS)).format(rng.choice(SUBJECTS))


def task_on(text: str, rng: np.random.Generator) -> str:
    """A prompt with a text and a task on it."""
    return str(rng.choice(TASKS)).format(text)

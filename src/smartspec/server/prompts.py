"""Texts and conversations to token ids, and whether they fit the context."""

import asyncio
from functools import cached_property

from jinja2 import TemplateError

from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.server.errors import APIError
from smartspec.server.protocol import ChatBody, CompletionBody, GenerationBody


class PromptReader:
    """Tokenises in a thread, so that a long prompt does not hold up the answers to others.

    tokenizer: a transformers tokenizer. Everything raises APIError 400 naming what is wrong with the prompt.
    """

    def __init__(self, tokenizer, engine: AsyncEngine):
        self._tokenizer = tokenizer
        self._vocab_size = engine.vocab_size
        self._max_model_len = engine.max_model_len

    async def read_completion(self, body: CompletionBody) -> list[list[int]]:
        """Token ids of each prompt."""
        self._check_token_ids("stop_token_ids", body.stop_token_ids)
        return [await self._read_prompt(prompt) for prompt in body.prompt]

    async def read_chat(self, body: ChatBody) -> list[int]:
        """Token ids of the conversation in the model's chat template, ready for the assistant to go on."""
        self._check_token_ids("stop_token_ids", body.stop_token_ids)
        if self._tokenizer.chat_template is None:
            raise APIError(400, "this model has no chat template: use /v1/completions", code="no_chat_template")
        roles = {"developer": "system"}  # what chat templates know it by
        messages = [{"role": roles.get(m.role, m.role), "content": m.content} for m in body.messages]
        self._check_length("messages", sum(len(m.content) for m in body.messages))
        try:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise APIError(400, f"the chat template refuses these messages: {error}", "messages") from error
        return await self._tokenize(text, add_special_tokens=False)

    def max_tokens(self, body: GenerationBody, asked: int | None, default: int | None, prompts: list[list[int]]) -> int:
        """New tokens allowed: asked, else the default, else what the context has left (None: all of it)."""
        num_prompt_tokens = max(map(len, prompts))
        left = self._max_model_len - num_prompt_tokens
        if left < 1:
            raise APIError(
                400,
                f"the prompt has {num_prompt_tokens} tokens and leaves no room in the context of "
                f"{self._max_model_len} tokens: shorten it",
                "messages" if hasattr(body, "messages") else "prompt",
                "context_length_exceeded",
            )
        if asked is None:
            return left if default is None else min(default, left)
        if asked > left:
            raise APIError(
                400,
                f"max_tokens {asked} and the {num_prompt_tokens} tokens of the prompt exceed the context of "
                f"{self._max_model_len} tokens: use at most {left}",
                "max_tokens",
                "context_length_exceeded",
            )
        return asked

    @cached_property
    def _longest_token(self) -> int:
        """Characters of the longest token: a text has at least (its characters / this) tokens."""
        return max(map(len, self._tokenizer.get_vocab()))

    async def _read_prompt(self, prompt: str | list[int]) -> list[int]:
        if not isinstance(prompt, str):
            self._check_token_ids("prompt", prompt)
            return prompt
        self._check_length("prompt", len(prompt))
        token_ids = await self._tokenize(prompt, add_special_tokens=True)
        if not token_ids:
            raise APIError(400, "the prompt is empty", "prompt", "invalid_value")
        return token_ids

    async def _tokenize(self, text: str, add_special_tokens: bool) -> list[int]:
        encoding = await asyncio.to_thread(self._tokenizer, text, add_special_tokens=add_special_tokens)
        return encoding["input_ids"]

    def _check_length(self, param: str, num_characters: int) -> None:
        """Refuse what cannot fit without the seconds it takes to tokenise megabytes."""
        if num_characters > self._longest_token * self._max_model_len:
            raise APIError(
                400,
                f"{param} has {num_characters} characters, more than fit the context of {self._max_model_len} tokens",
                param,
                "context_length_exceeded",
            )

    def _check_token_ids(self, param: str, token_ids: list[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise APIError(
                    400,
                    f"{param}: token id {token_id} is not between 0 and {self._vocab_size - 1}",
                    param,
                    "invalid_value",
                )

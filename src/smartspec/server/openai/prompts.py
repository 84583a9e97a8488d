"""Texts and conversations to token ids, and whether they fit the context."""

import json
from collections.abc import Iterable, Iterator, Sequence
from inspect import signature

from smartspec.core.batch import TokenLogprobs
from smartspec.engine.models.chat_templates import ChatTemplate, ChatTemplateError
from smartspec.engine.runtime.async_engine import AsyncEngine
from smartspec.engine.text.token_texts import TokenText
from smartspec.server.http.errors import APIError
from smartspec.server.openai import thoughts
from smartspec.server.openai.call_formats import HERMES, CallFormat, format_of
from smartspec.server.openai.chat_body import ChatBody, Message, TokenizeBody
from smartspec.server.openai.completion_body import CompletionBody
from smartspec.server.openai.generation_body import GenerationBody
from smartspec.server.openai.messages import (
    mended,
    num_characters,
    to_plain_template,
    to_template,
    with_own_tools,
    with_written_calls,
    without_system,
)
from smartspec.server.openai.said import Reading
from smartspec.server.openai.tools import Tool

TOOLS_OF_A_MESSAGE = "message['tools']"  # in templates that read them there (Phi-4)
PROMPT_PARTS = ("messages", "tools", "prompt")
MARK_TOKENS = 16  # at the end of a prompt, more than a mark and white space have


class PromptReader:
    """tokenizer: a transformers tokenizer. Everything raises APIError 400 naming what is wrong with
    the prompt.

    Call it in a thread: a long prompt takes long to tokenise.
    """

    def __init__(self, tokenizer, engine: AsyncEngine):
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer)
        self._token_texts = engine.token_texts
        self._vocab_size = engine.vocab_size
        self._max_model_len = engine.max_model_len
        self._template_parameters = signature(tokenizer.apply_chat_template).parameters.keys()
        # A text has at least (its characters / this) tokens.
        self._longest_token = max(map(len, tokenizer.get_vocab()))

    def read_completion(self, body: CompletionBody) -> list[list[int]]:
        """Token ids of each prompt."""
        return [self._read_prompt(prompt, body.add_special_tokens) for prompt in body.prompt]

    def read_chat(self, body: ChatBody | TokenizeBody) -> list[int]:
        """Token ids of the conversation in the model's chat template, ready for the assistant to go
        on."""
        tools = [tool.for_template() for tool in body.offered_tools]
        self._check_length("tools", len(json.dumps(tools)))
        self._check_length("messages", sum(map(num_characters, body.messages)))
        template = self._template_text(tools)
        if reserved := self._template_parameters & body.chat_template_kwargs.keys():
            name = f"chat_template_kwargs.{min(reserved)}"
            raise APIError(
                400, f"{name} is not a variable of chat templates", name, "invalid_value"
            )
        text = self._rendered(template, self._forms(body.messages, tools, template), body)
        self._check_length("messages", len(text), "has, in the chat template,")
        return self._tokenize(text, add_special_tokens=False)

    def _forms(
        self, messages: list[Message], tools: list[dict], template: str
    ) -> Iterator[tuple[list[dict], list]]:
        """The conversation as the template takes it, and the tools; and then in other ways that say
        the same, as templates refuse much, of what this server answers too. Lazy: most
        conversations need the first alone."""
        plain = to_plain_template(messages, tools)
        if "tools" in template:
            entries = to_template(messages)
            if TOOLS_OF_A_MESSAGE in template:
                entries = with_own_tools(entries, tools)
            if "tool_calls" not in template:
                entries = with_written_calls(entries, format_of(template))
            yield entries, tools
            if not tools and not any(
                message.tool_calls or message.role == "tool" for message in messages
            ):
                return
            if any(message.tool_calls for message in messages):
                yield mended(entries, arguments_as_text=False), tools
                yield mended(entries, arguments_as_text=True), tools
        yield plain, []
        if tools:
            yield without_system(plain), []

    def _rendered(
        self, template: str, forms: Iterable[tuple[list[dict], list]], body: ChatBody | TokenizeBody
    ) -> str:
        first: ChatTemplateError | None = None
        for messages, tools in forms:
            try:
                return self._template.render(
                    messages,
                    chat_template=template,
                    tools=tools or None,
                    add_generation_prompt=body.add_generation_prompt
                    and not body.continue_final_message,
                    continue_final_message=body.continue_final_message,
                    **body.template_variables(),
                )
            except ChatTemplateError as error:
                first = first or error
                if error.is_slow:
                    break
        raise APIError(
            400, f"the chat template refuses these messages: {first}", "messages"
        ) from first

    def _template_text(self, tools: list[dict]) -> str:
        try:
            text = self._template.text(tools)
        except ChatTemplateError as error:
            raise APIError(400, str(error), "tools", "no_chat_template") from error
        if text is None:
            raise APIError(
                400, "this model has no chat template: use /v1/completions", code="no_chat_template"
            )
        return text

    def predicted(self, body: ChatBody) -> tuple[int, ...]:
        """Token ids of the predicted output, none without one."""
        if body.prediction is None:
            return ()
        text, param = body.prediction.content, "prediction.content"
        self._check_length(param, len(text))
        token_ids = self._tokenize(text, add_special_tokens=False)
        if len(token_ids) > self._max_model_len:
            raise APIError(
                400,
                f"{param} has {len(token_ids)} tokens, more than any answer in the context of "
                f"{self._max_model_len} tokens: shorten it",
                param,
                "context_length_exceeded",
            )
        return tuple(token_ids)

    def reading(self, body: ChatBody, prompt: list[int], has_grammar: bool) -> Reading:
        """How the answer's text is read. A grammar has calls in a format of its own."""
        template, tools = self._tokenizer.chat_template, body.offered_tools
        thinks = (
            thoughts.END in str(template) and thoughts.END not in self._tokenizer.all_special_tokens
        )
        return Reading(
            thinks=thinks,
            is_open=thinks and self._opens_thought(prompt, body),
            max_calls=body.max_calls if tools else 0,
            call_format=self._call_format(tools) if tools and not has_grammar else HERMES,
            schemas={tool.function.name: tool.function.parameters for tool in tools},
        )

    def _opens_thought(self, prompt: list[int], body: ChatBody) -> bool:
        """True if the answer begins within a thought: the prompt ends with the mark of one, or the
        message that is continued has not ended one."""
        if body.continue_final_message:
            text = body.messages[-1].content
            return text.rfind(thoughts.BEGIN) > text.rfind(thoughts.END)
        return self.decode(prompt[-MARK_TOKENS:]).rstrip().endswith(thoughts.BEGIN)

    def _call_format(self, tools: list[Tool]) -> CallFormat:
        """The way in which the model writes calls of tools, as far as its chat template tells."""
        template = self._template_text([tool.for_template() for tool in tools])
        return format_of(template) if "tools" in template else HERMES

    def has_special_marks(self, form: CallFormat) -> bool:
        """True if marks of calls are special tokens, which would have no text."""
        special = {
            token.content
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.special
        }
        return not special.isdisjoint((*form.begin, *form.between))

    def echoed(self, body: CompletionBody, prompts: list[list[int]]) -> list[str]:
        """The text of each prompt, none if it is not requested before that of its choices."""
        if not body.echo:
            return []
        pairs = zip(body.prompt, prompts, strict=True)
        return [
            prompt if isinstance(prompt, str) else self.detokenize(ids) for prompt, ids in pairs
        ]

    def read_echo(
        self, text: str, token_ids: list[int], found: Sequence[TokenLogprobs]
    ) -> Sequence[TokenText]:
        """The tokens of a prompt that is echoed as this text. found: of its second token and those
        after it."""
        return self._token_texts.read(text, token_ids, [None, *found])

    def bad_words(self, body: GenerationBody) -> tuple[tuple[int, ...], ...]:
        """Token ids of each bad word, at the beginning of a text and after a space."""
        self._check_length("bad_words", sum(map(len, body.bad_words)))
        texts = [text for word in body.bad_words for text in (word, f" {word.lstrip()}")]
        return tuple(
            tuple(self._tokenize(text, add_special_tokens=False)) for text in dict.fromkeys(texts)
        )

    def tokenize(self, body: TokenizeBody) -> list[int]:
        """Token ids of a text or a conversation."""
        if body.prompt is None:
            return self.read_chat(body)
        self._check_length("prompt", len(body.prompt))
        return self._tokenize(body.prompt, body.add_special_tokens)

    def detokenize(self, token_ids: list[int]) -> str:
        """The text of token ids, special ones included."""
        self.check_token_ids("tokens", token_ids)
        return self.decode(token_ids)

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids that have been checked."""
        return self._tokenizer.decode(token_ids)

    def room(self, body: GenerationBody, requested: int | None, prompts: list[list[int]]) -> int:
        """Tokens that the context leaves for the answer. requested: how many the body wants, if it
        says so."""
        num_prompt_tokens = max(map(len, prompts))
        param = "messages" if hasattr(body, "messages") else "prompt"
        if 0 <= (cut_at := body.truncate_prompt_tokens or -1) < num_prompt_tokens:
            raise APIError(
                400,
                f"truncate_prompt_tokens {cut_at}: no prompt is cut here, and this one has "
                f"{num_prompt_tokens} tokens",
                "truncate_prompt_tokens",
                "invalid_value",
            )
        left = self._max_model_len - num_prompt_tokens
        if left < (0 if requested == 0 else 1):
            raise APIError(
                400,
                f"prompt is too long: {num_prompt_tokens} tokens leave no room in the context of "
                f"{self._max_model_len} tokens: shorten it",
                param,
                "context_length_exceeded",
            )
        return left

    def _read_prompt(self, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
        if not isinstance(prompt, str):
            self.check_token_ids("prompt", prompt)
            return prompt
        self._check_length("prompt", len(prompt))
        token_ids = self._tokenize(prompt, add_special_tokens)
        if not token_ids:
            raise APIError(400, "the prompt is empty", "prompt", "invalid_value")
        return token_ids

    def _tokenize(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]

    def _check_length(self, param: str, num_characters: int, verb: str = "has") -> None:
        """Refuse what cannot fit without the seconds it takes to tokenise megabytes."""
        if num_characters > self._longest_token * self._max_model_len:
            raise APIError(
                400,
                f"{'prompt is too long: ' * (param in PROMPT_PARTS)}{param} {verb} "
                f"{num_characters} characters, more than fit the context of {self._max_model_len} "
                "tokens",
                param,
                "context_length_exceeded",
            )

    def check_token_ids(self, param: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise APIError(
                    400,
                    f"{param}: token id {token_id} is not between 0 and {self._vocab_size - 1}",
                    param,
                    "invalid_value",
                )

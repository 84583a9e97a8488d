"""Types of the answers, for the OpenAPI document. formats, responses and app write the answers."""

from typing import Literal

from pydantic import BaseModel


class ErrorText(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """Every failure."""

    error: ErrorText


class CachedTokens(BaseModel):
    cached_tokens: int


class PredictionTokens(BaseModel):
    """There where the request has a prediction."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: PredictionTokens | None = None


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[ChatLogprob]
    refusal: None


class AnsweredFunction(BaseModel):
    name: str
    arguments: str


class AnsweredCall(BaseModel):
    id: str
    type: Literal["function"]
    function: AnsweredFunction


class AnsweredMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[AnsweredCall] = []


class PromptLogprob(BaseModel):
    logprob: float
    rank: int
    decoded_token: str


# By token id; null for the first token of a prompt.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatChoice(BaseModel):
    index: int
    message: AnsweredMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: PromptLogprobs | None = None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[dict]
    logprobs: list[dict]


class ReasoningText(BaseModel):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(BaseModel):
    """The thought of a model that thinks."""

    type: Literal["reasoning"]
    id: str
    status: Literal["completed", "incomplete"]
    content: list[ReasoningText]
    summary: list[dict]


class OutputMessage(BaseModel):
    type: Literal["message"]
    id: str
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


class OutputCall(BaseModel):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["completed"]


class ResponseUsage(BaseModel):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: CachedTokens


class ResponsesAnswer(BaseModel):
    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["completed", "incomplete"]
    output: list[OutputReasoning | OutputMessage | OutputCall]
    usage: ResponseUsage


class MessageUsage(BaseModel):
    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    """An answer of Anthropic's interface."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class MessageError(BaseModel):
    """Every failure of Anthropic's interface."""

    type: Literal["error"]
    error: dict[str, str]
    request_id: str


class NumTokens(BaseModel):
    input_tokens: int


class Tokens(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]


class Detokenized(BaseModel):
    prompt: str


class Model(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Status(BaseModel):
    status: Literal["ok"]


class Version(BaseModel):
    version: str


class Speculation(BaseModel):
    """Further fields are those of the policy, see the operator guide."""

    model: str
    drafters: list[str]
    kernels: dict[str, str]

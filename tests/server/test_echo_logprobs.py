"""`echo` with `logprobs` in completions, as evaluation harnesses request it; here of the fake
model."""

import pytest
from fake_core import OTHER_TOKEN_ID
from fake_server import MAX_MODEL_LEN
from test_token_texts import TEXTS, check_offsets

from smartspec.core.prefill_room import SCORED_CHUNK


def scored(server, prompt, **body):
    return server.completion(prompt=prompt, echo=True, **{"logprobs": 1} | body)


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
@pytest.mark.parametrize("num_tokens", [1, 2, SCORED_CHUNK, SCORED_CHUNK + 1, 2 * SCORED_CHUNK + 1])
def test_tokens_of_prompt_and_output(either_server, tokenizer, max_tokens, num_tokens):
    token_ids = tokenizer("One two three four five six " * 30)["input_ids"][:num_tokens]
    answer = scored(either_server, token_ids, max_tokens=max_tokens)
    choice, log = answer.choices[0], answer.choices[0].logprobs
    assert answer.usage.prompt_tokens == num_tokens
    assert len(log.tokens) == num_tokens + answer.usage.completion_tokens
    assert log.token_logprobs[0] is None and log.top_logprobs[0] is None and log.text_offset[0] == 0
    assert set(log.token_logprobs[1:]) <= {-0.5} and all(
        -0.5 in top.values() for top in log.top_logprobs[1:]
    )
    if max_tokens <= num_tokens:  # it says the prompt back, and then the end of the sequence
        said = token_ids + token_ids[:max_tokens]
        assert choice.text == tokenizer.decode(said) == "".join(log.tokens)
        assert answer.usage.completion_tokens == max_tokens and choice.finish_reason == "length"
        check_offsets(choice.text, log.tokens, log.text_offset)


def test_the_token_that_ends_the_answer_is_there(server, tokenizer):
    """lm-eval takes the last token off, whichever it is: without this it would lose one of the
    prompt."""
    answer = scored(server, [5], max_tokens=9)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs.tokens == [tokenizer.decode([5])] * 2 + [tokenizer.eos_token]
    assert answer.usage.completion_tokens == 2


@pytest.mark.parametrize("text", TEXTS)
def test_offsets_point_into_prompt_and_output(server, tokenizer, text):
    for prompt in (text, f"<|im_start|>user\n{text}<|im_end|>"):
        num_tokens = len(tokenizer(prompt)["input_ids"])
        choice = scored(
            server, prompt, max_tokens=200, extra_body={"skip_special_tokens": False}
        ).choices[0]
        log = choice.logprobs
        assert choice.text.startswith(prompt) and "".join(log.tokens[:num_tokens]) == prompt
        assert choice.finish_reason == "stop"  # by a token that is no part of the text
        check_offsets(choice.text, log.tokens[:-1], log.text_offset[:-1])
        assert log.text_offset[-1] == len(choice.text)


def test_several_prompts_and_choices(server, tokenizer):
    prompts = ["One two", "three four five", "你好 🎉"]
    answer = scored(server, prompts, n=2, max_tokens=3, logprobs=2)
    lengths = [len(tokenizer(prompt)["input_ids"]) for prompt in prompts]
    assert [choice.index for choice in answer.choices] == list(range(6))
    for choice in answer.choices:
        prompt, log = prompts[choice.index // 2], choice.logprobs
        num_prompt_tokens = lengths[choice.index // 2]
        assert "".join(log.tokens[:num_prompt_tokens]) == prompt
        assert len(log.tokens) == num_prompt_tokens + 3 and log.token_logprobs.count(None) == 1
        check_offsets(choice.text, log.tokens, log.text_offset)
    assert answer.usage.prompt_tokens == sum(lengths) and answer.usage.completion_tokens == 18


def test_alternatives_are_as_many_as_each_field_requests(server, tokenizer):
    token_ids = tokenizer("One two three")["input_ids"]
    other = tokenizer.decode([OTHER_TOKEN_ID])
    for logprobs, listed in ((0, 1), (1, 0), (0, None), (1, None)):
        body = {} if listed is None else {"prompt_logprobs": listed}
        choice = scored(
            server, token_ids, max_tokens=1, logprobs=logprobs, extra_body=body
        ).choices[0]
        tops = choice.logprobs.top_logprobs
        assert tops is None if not logprobs else [other in top for top in tops[1:-1]] == [True] * 2
        found = choice.model_dump().get("prompt_logprobs")
        assert (
            found is None
            if listed is None
            else [len(entry) for entry in found[1:]] == [1 + listed] * 2
        )


def test_an_echo_without_output_or_logprobs(server):
    answer = scored(server, "One two three", logprobs=None, max_tokens=0)
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("One two three", "length")
    assert answer.choices[0].logprobs is None and answer.usage.completion_tokens == 0
    chunks = [*scored(server, "One two three", logprobs=None, max_tokens=0, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "One two three"


def test_a_prompt_that_fills_the_context(server):
    answer = scored(server, [5] * MAX_MODEL_LEN, max_tokens=0)
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.total_tokens == MAX_MODEL_LEN


def test_nothing_of_a_scored_prompt_is_taken_from_the_cache_of_another(server):
    prompt = "a long shared prompt, " * 20
    scored(server, prompt, max_tokens=1)
    again = scored(server, prompt + "and more", max_tokens=1)
    assert (
        again.usage.prompt_tokens_details.cached_tokens == 0
        and None not in again.choices[0].logprobs.token_logprobs[1:]
    )

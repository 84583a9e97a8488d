"""Generation in one's own process, on the real model."""

import subprocess
import sys
from dataclasses import replace

import pytest

from smartspec import LLM, SamplingParams
from smartspec.server.openai.chat_body import ChatBody

PROMPTS = ["1, 2, 3, 1, 2, 3, 1, 2, 3, 1,", "ha ha ha ha"]
GREEDY = SamplingParams(max_tokens=16, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    """With drafts on every machine: what pays is not asked."""
    with LLM(policy="fixed:4", max_batch=4, max_model_len=512) as llm:
        yield llm


def test_a_batch_has_the_answers_of_single_calls_and_of_plain_decoding(llm):
    together = llm.generate(PROMPTS, GREEDY)
    alone = [llm.generate(llm.tokenizer(prompt)["input_ids"], GREEDY)[0] for prompt in PROMPTS]
    assert [output.token_ids for output in together] == [output.token_ids for output in alone]
    with LLM(policy="off", max_batch=4, max_model_len=512) as plain:
        assert [output.text for output in plain.generate(PROMPTS, GREEDY)] == [
            output.text for output in together
        ]
    assert [output.index for output in together] == [0, 1] and together[0].finish_reason == "length"
    assert all(
        len(output.token_ids) <= output.num_accepted_tokens + output.num_steps
        for output in together
    )


def test_accepted_draft_tokens_save_steps(llm):
    # one token again and again
    (output,) = llm.generate(PROMPTS[1], replace(GREEDY, allowed_token_ids=(31,)))
    assert output.token_ids == (31,) * 16
    assert output.num_steps + output.num_accepted_tokens >= 16 > output.num_steps


def test_more_prompts_than_fit_into_a_batch_wait(llm):
    outputs = llm.generate(
        [f"{number}," for number in range(11)], SamplingParams(max_tokens=3, temperature=0)
    )
    assert [len(output.token_ids) for output in outputs] == [3] * 11


def test_a_stream_brings_the_same_text_and_may_be_left(llm):
    text = "".join(delta.text for delta in llm.stream(PROMPTS[0], GREEDY))
    assert text == llm.generate(PROMPTS[0], GREEDY)[0].text
    stream = llm.stream(PROMPTS, SamplingParams(max_tokens=200, temperature=0))
    next(stream)
    stream.close()
    assert llm.engine.num_requests == 0, "the rest was aborted"


def test_a_conversation_is_read_as_the_server_reads_it(llm):
    """The same prompts, and so the same answers: parts, null, tools, variables, several
    conversations."""
    user = {
        "role": "user",
        "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 2?"}],
    }
    call = {"id": "call_1", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
    turns = [user, {"role": "assistant", "content": None, "tool_calls": [call]}]
    turns.append({"role": "tool", "tool_call_id": "call_1", "content": "4"})
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    plain = llm.chat([{"role": "user", "content": "What is 2 + 2?"}], GREEDY)
    assert plain.text and llm.chat([user], GREEDY).token_ids == plain.token_ids
    both = llm.chat([[user], turns], GREEDY, tools=tools)
    assert [output.index for output in both] == [0, 1]
    assert both[0].num_prompt_tokens > plain.num_prompt_tokens > 10
    prompt = llm._prompts.read_chat(ChatBody.model_validate({"messages": turns, "tools": tools}))
    assert both[1].token_ids == llm.generate(prompt, GREEDY)[0].token_ids
    assert both[1].num_prompt_tokens == len(prompt)
    assert "</tool_response>" in llm.tokenizer.decode(prompt)
    begun = llm.chat(
        [user, {"role": "assistant", "content": "It is"}], GREEDY, continue_final_message=True
    )
    assert begun.num_prompt_tokens == plain.num_prompt_tokens + 2
    for wrong in (
        {"messages": [{"role": "user"}]},
        {"messages": [user], "tools": 3},
        {"messages": [user], "n": 2},
    ):
        with pytest.raises(ValueError, match=r"content|tools|n is not about the prompt"):
            llm.chat(params=GREEDY, **wrong)


def test_log_probabilities_are_in_the_output_where_they_were_requested(llm):
    params = SamplingParams(max_tokens=5, temperature=0, logprobs=2, prompt_logprobs=0)
    (output,) = llm.generate("1, 2, 3,", params)
    assert (
        "".join(token.text for token in output.logprobs) == output.text
        and len(output.logprobs) == 5
    )
    assert all(len(token.top) == 2 and token.logprob <= 0 for token in output.logprobs)
    assert len(output.prompt_logprobs) == output.num_prompt_tokens - 1
    assert llm.generate("1, 2, 3,", GREEDY)[0].logprobs is None


def test_a_prediction_changes_how_fast_an_answer_comes_and_not_what_it_is(llm):
    greedy, prompt = replace(GREEDY, max_tokens=48), "A list of all months and what they bring:"
    plain = llm.generate(prompt, greedy)[0]
    predicted = llm.generate(prompt, greedy, prediction=plain.text)[0]
    assert predicted.token_ids == plain.token_ids and len(plain.token_ids) == 48
    assert predicted.num_steps < 48 / 2
    assert (
        llm.generate(prompt, greedy, prediction="ein Fuchs " * 50)[0].token_ids == plain.token_ids
    )


@pytest.mark.parametrize(
    ("prompt", "words"), [("", "prompt 0 is empty"), ([5] * 600, "exceed the context of 512")]
)
def test_what_cannot_be_answered_is_said_and_disturbs_nothing(llm, prompt, words):
    with pytest.raises(ValueError, match=words):
        llm.generate([prompt], GREEDY)
    assert llm.generate(PROMPTS[1], GREEDY)[0].text


def test_the_package_alone_imports_no_model_code():
    code = (
        "import smartspec, sys; sys.exit(any(name in sys.modules for name in ('torch', "
        "'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert LLM.__module__ == "smartspec.llm"

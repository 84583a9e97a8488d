"""Where an answer ends: by the generation config, by name, and by what the chat template writes
after an answer."""

import pytest
from saved_models import save_model
from tokenizers import AddedToken, Tokenizer, models
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

from smartspec.engine.models.end_of_turn import end_token_ids, template_end

SPECIAL = (
    "[bos]",
    "[end]",
    "<|user|>",
    "<|assistant|>",
    "<|sep|>",
    "<|stop|>",
    "<|stop|>2",
    "<|start|>",
)
CHATML = (
    "{% for m in messages %}<|start|>{{ m.role }}<|sep|>{{ m.content }}<|stop|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|sep|>{% endif %}"
)
ROLES = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{% if m.role == 'assistant' %}[end]{% endif %}\n{% endfor %}"
)
TEXT_ONLY = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
BEGINS_NEXT = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}<|assistant|>"
STOPS_AND_BEGINS_NEXT = CHATML.partition("{% if")[0] + "<|start|>assistant<|sep|>"
OPENS_AGAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt or messages[-1].role == 'assistant' %}<|assistant|>{% endif %}"
)
NEW_TEXT = "{% for m in messages %}{{ m.content }}[bos]{% endfor %}"
LONGER = "{% for m in messages %}{{ m.content }} <|stop|>2{% endfor %}"
RAISES = "{{ raise_exception('not like this') }}"


def tokenizer_with(template: str | None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="[bos]", eos_token="[end]"
    )
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHATML, "<|stop|>"),
        (ROLES, "[end]"),
        (STOPS_AND_BEGINS_NEXT, "<|stop|>"),
        (LONGER, "<|stop|>2"),
        (TEXT_ONLY, None),
        (BEGINS_NEXT, None),
        (OPENS_AGAIN, None),
        (NEW_TEXT, None),
        (RAISES, None),
        (None, None),
    ],
)
def test_what_a_template_writes_after_an_answer(template, expected):
    tokenizer = tokenizer_with(template)
    assert template_end(tokenizer) == (
        None if expected is None else tokenizer.convert_tokens_to_ids(expected)
    )


def test_all_that_the_generation_config_the_names_and_the_template_say(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(save_model(tmp_path))
    model.generation_config, model.config.eos_token_id = (
        GenerationConfig(eos_token_id=[7, 9]),
        [9, 11],
    )
    tokenizer = tokenizer_with(CHATML)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|eom_id|>", "<|end|>", "<|call|>", "<|return|>"]}
    )
    tokenizer.add_tokens(["<|im_end|>"])  # a token of texts: no end
    # a message's <|end|> is not the turn's
    names = ("[end]", "<|stop|>", "<|eom_id|>", "<|call|>", "<|return|>")
    assert end_token_ids(model, tokenizer) == {
        7,
        9,
        11,
        *tokenizer.convert_tokens_to_ids(list(names)),
    }

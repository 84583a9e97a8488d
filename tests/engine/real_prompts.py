"""Short prompts for tests on the real model."""

from default_model import default_tokenizer

PROMPTS = [
    "Write the numbers from one to twenty as words, separated by commas.",
    "Fix the bug and return the complete code:\n```python\ndef mean(values):\n    total = 0\n    "
    "for value in values:\n        total += value\n    return total / len(value)\n```",
    "Translate to French: The weather is nice today and the children play in the garden.",
    "What is the capital of Australia? Answer in one sentence.",
    "Summarize: Lighthouses were built to guide ships. Their keepers lit lamps every night. Today "
    "most lighthouses are automatic, and many have become museums. Visitors climb the stairs to "
    "see the sea from above.",
    "Tom has 3 boxes with 12 apples each. He gives away 9 apples. How many are left? Think step by "
    "step.",
    "List five animals and five plants, each on its own line.",
    "Repeat the following sentence three times: a stitch in time saves nine.",
]


def chats(prompts: list[str]) -> list[list[int]]:
    """Tokens of conversations that begin with these."""
    tokenizer = default_tokenizer()
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]

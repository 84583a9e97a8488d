"""A grammar of what comes after a thought: the thought itself is free, as in vLLM's structured
output of reasoning."""

import json

# The end of the thought is the first mark; the spaces after it are no part of the answer.
_OPEN = "start: inner /\\s{0,8}/ @after\ninner[lazy]: /(?s:.*)<\\/think>/"
_MAYBE = f"start: (/\\s{{0,8}}<think>/ inner /\\s{{0,8}}/)? @after\n{_OPEN.splitlines()[1]}"


def after_thought(definition: str, is_open: bool) -> str:
    """definition: as from LLMatcher.grammar_from_*, whose text the answer is. is_open: the prompt
    has begun the thought; otherwise the model may begin one."""
    try:
        first, *others = json.loads(definition)["grammars"]
    except ValueError:  # grammar_from_lark returns its text
        first, others = {"lark_grammar": definition}, []
    thought = {"lark_grammar": _OPEN if is_open else _MAYBE}
    return json.dumps({"grammars": [thought, first | {"name": "after"}, *others]})

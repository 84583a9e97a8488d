from smartspec.workload.prompts import Prompt
from smartspec.workload.workloads import (
    LONG_CONTEXT_ARTICLES,
    long_contexts,
    read_workloads,
    shipped_workloads,
)


def test_sixteen_prompts_of_each_workload_none_twice():
    shipped = shipped_workloads()
    tasks = {"chat", "code", "editing", "math", "qa", "rag", "summarization", "translation"}
    assert set(shipped) == tasks | {"text-to-sql", "long-context"}
    assert {len(prompts) for prompts in shipped.values()} == {16}
    texts = [prompt.text for prompts in shipped.values() for prompt in prompts]
    ids = [prompt.prompt_id for prompts in shipped.values() for prompt in prompts]
    assert len(set(texts)) == len(set(ids)) == len(texts)
    assert all(30 <= len(prompt.text) <= 3500 for task in tasks for prompt in shipped[task])
    assert all(
        "CREATE TABLE" in prompt.text and "Question: " in prompt.text
        for prompt in shipped["text-to-sql"]
    )


def test_a_long_context_is_articles_in_a_row_and_a_task_about_one():
    summaries = [
        Prompt(f"s-{i}", "summarization", f"Summarize this.\n\nText {i}.") for i in range(7)
    ]
    made = long_contexts(summaries)
    assert len(made) == 7 and made[0].task == "long-context"
    parts = made[6].text.split("\n\n")
    assert parts[1::2][:LONG_CONTEXT_ARTICLES] == ["Text 6.", "Text 0.", "Text 1.", "Text 2."]
    assert parts[-1].startswith("Summarize the third article")


def test_own_prompts_are_grouped_by_task(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a", "task": "x"}\n{"prompt": "b"}\n{"prompt": "c", "task": "x"}\n')
    found = {name: [prompt.text for prompt in some] for name, some in read_workloads(path).items()}
    assert found == {"x": ["a", "c"], "prompts": ["b"]}

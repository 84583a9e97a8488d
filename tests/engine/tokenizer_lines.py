"""Lines on which tokenizers show how they cut: drawn from pieces of every kind, and the prompts we
ship."""

import json
import random
from collections.abc import Iterator
from importlib.resources import files

WORDS = (
    "the The quick HELLO helloWorld CamelCaseWord XMLHttp I'm we'll WE'LL they've can't don't IT'S "
    "he'd x's naïve Größe ÄÖÜ Straße élève ΑΒΓ αβγ Привет МОСКВА мир 你好 世界 中文字符 こんにちは カタカナ ｶﾀｶﾅ "  # noqa: E501
    "한국어 안녕 ㄱㄴ ㄅㄆ สวัสดี ខ្មែរ မြန်မာ नमस्ते हिन्दी বাংলা العربية مرحبا שלום ǅ ʰ ª İstanbul ıI ß "
    "ſ's ﬁ Ａｂｃ"
)
NUMBERS = (
    "0 7 12 123 1234 12345 123456 1234567 12345678901 3.14159 1,234,567.89 0x1F 1e-10 2024-01-02 "
    "12:34:56 192.168.0.1 +49(30)1234 7th ⅷ ½ ² ٣٤٥ १२३ １２３ 一二三 々 〇 ⼀"
)
SIGNS = (
    "! !! ... ?! -- --> => == != <= >= && || ++ ** // /* */ \\ \\n ' '' \" \"\" ` ``` ~ ~~ ^ $ $$ "
    "% @ # ## ### _ __ | {} [] () <> {{ }} ;; :: , . … 。 ， 、 ！ ？ ： “引用” ‘’ — – • © ™ € £ ° ± × √ ∞ "  # noqa: E501
    "← → ☃ ★ ．／ 〜 ・ 「」 ।۔، 's"
)
SPACES = (
    "  |   |\t|\t\t|\n|\n\n|\r\n|\r\n\r\n|\u00a0| \u00a0|\u3000|\u2003|\u2028|\u0085|\x0b|\x0c| "
    "\n|\n |\n\n  |  \n  |\t \t|\u200b|\u200d|\u200c|\ufeff|\x1c"
)
EMOJI = "😀|👍🏽|👨‍👩‍👧‍👦|🇩🇪|❤️|1️⃣|🏳️‍🌈|🤖🤖"
MARKS = "e\u0301|n\u0303o|a\u0308\u0304|क्षि|ก็|\u0301x|Z̷a̶l̷g̵o"
CODE = (
    "def f(x):\n    return x+1\n",
    "for(int i=0;i<10;i++){\n\tfoo[i]=i*2;\n}",
    "#include <stdio.h>\r\n",
    "SELECT * FROM t WHERE a='b';",
    "https://example.com/a/b?c=d&e=1#f",
    '<div class="x">&nbsp;</div>',
    "\\frac{1}{2}",
    "$HOME/.config",
    "a/b/c\n/\n",
)
SPECIAL = (
    "<|im_start|> <|im_end|> <|endoftext|> <s> </s> <0x0A> IMGIMGABCZ <sentinel:12> <reponame>"
)
LONG = ("9" * 1500, "12 " * 300, " " * 600 + "x", " " * 600, "\n" * 100, "a" * 600, "")


def lines(seed: int, count: int, special: bool = True) -> Iterator[str]:
    """special: with what looks like special tokens."""
    rng = random.Random(seed)
    plain = [text.split() for text in (WORDS, NUMBERS, SIGNS, *([SPECIAL] if special else []))]
    pools, spaces = [*plain, EMOJI.split("|"), MARKS.split("|"), CODE], SPACES.split("|")
    for _ in range(count):
        parts: list[str] = []
        for _ in range(rng.randint(1, 12)):
            parts += [rng.choice(rng.choice(pools)), rng.choice((" ", " ", "", rng.choice(spaces)))]
        yield "".join(parts)
    yield from LONG


def prompts() -> Iterator[str]:
    """The texts of the prompts that we ship."""
    shipped = files("smartspec.workload").joinpath("data/prompts.jsonl").read_text(encoding="utf-8")
    for line in shipped.splitlines():
        yield from _texts(json.loads(line))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)

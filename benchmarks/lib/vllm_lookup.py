"""vLLM's rule of prompt lookup."""

LONGEST, SHORTEST_MATCH, LONGEST_MATCH = 5, 2, 4


def lookup(tokens: tuple[int, ...], longest: int = LONGEST) -> tuple[int, ...]:
    """vLLM's draft: what follows the first place of the longest match of the text's end."""
    for length in range(min(LONGEST_MATCH, len(tokens) - 1), SHORTEST_MATCH - 1, -1):
        end = tokens[-length:]
        for place in range(len(tokens) - length):
            if tokens[place] == end[0] and tokens[place : place + length] == end:
                return tokens[place + length : place + length + longest]
    return ()

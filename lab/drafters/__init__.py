"""Drafters that no default reaches, named as classes: `--drafter
lab.drafters.ngram_tree:NgramTree`."""

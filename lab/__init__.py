"""The laboratory: what is compared with, drawn and trained here, and no part of the package
(README.md)."""

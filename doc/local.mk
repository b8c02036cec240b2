# doc: what there is to read beside the man pages.
EXTRA_DIST += doc/architecture.md
EXTRA_DIST += doc/testing.md

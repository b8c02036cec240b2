# doc: what there is to read beside the man pages.
EXTRA_DIST += doc/architecture.md doc/gpu.md doc/takes.md doc/testing.md

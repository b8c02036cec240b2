# tests/fuzz: `make fuzz` builds targets for libFuzzer with clang; nothing else needs them. To run one:
#   mkdir corpus && tests/fuzz/fuzz_msg -max_total_time=60 corpus
FUZZ_CC = clang
gfs_fuzz_flags = -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
gfs_fuzz_compile = $(FUZZ_CC) $(DEFS) -I. $(AM_CPPFLAGS) $(GFS_CFLAGS) \
	-Wno-unknown-warning-option $(gfs_fuzz_flags)

gfs_fuzz_base = $(srcdir)/src/base/buf.c $(srcdir)/src/base/err.c
gfs_fuzz_msg = $(srcdir)/tests/fuzz/fuzz_msg.c $(gfs_fuzz_base) \
	$(srcdir)/src/wire/msg.c $(srcdir)/src/wire/link.c
gfs_fuzz_layout = $(srcdir)/tests/fuzz/fuzz_layout.c $(gfs_fuzz_base) \
	$(srcdir)/src/tensor/tensor.c $(srcdir)/src/shard/layout.c
EXTRA_DIST += tests/fuzz/fuzz_msg.c tests/fuzz/fuzz_layout.c
CLEANFILES += tests/fuzz/fuzz_msg tests/fuzz/fuzz_layout

.PHONY: fuzz
fuzz: tests/fuzz/fuzz_msg tests/fuzz/fuzz_layout

tests/fuzz/fuzz_msg: $(gfs_fuzz_msg) config.h
	$(AM_V_at)$(MKDIR_P) tests/fuzz
	$(AM_V_CCLD)$(gfs_fuzz_compile) -o $@ $(gfs_fuzz_msg)

tests/fuzz/fuzz_layout: $(gfs_fuzz_layout) config.h
	$(AM_V_at)$(MKDIR_P) tests/fuzz
	$(AM_V_CCLD)$(gfs_fuzz_compile) -o $@ $(gfs_fuzz_layout)

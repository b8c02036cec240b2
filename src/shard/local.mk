libgfs_core_a_SOURCES += \
	src/shard/layout.c src/shard/layout.h \
	src/shard/wrap.c src/shard/wrap.h

libgfs_core_a_SOURCES += \
	src/base/buf.c src/base/buf.h \
	src/base/err.c src/base/err.h \
	src/base/file.c src/base/file.h \
	src/base/knobs.c src/base/knobs_check.c src/base/knobs.h \
	src/base/log.c src/base/log.h \
	src/base/parse.c src/base/parse.h \
	src/base/segment.c src/base/segment.h

# src/wire: messages between supervisor, ranks and daemon.
libgfs_core_a_SOURCES += \
	src/wire/link.c src/wire/link.h \
	src/wire/msg.c src/wire/msg.h

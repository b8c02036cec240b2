# src/store: catalogue, snapshots, the I/O table.
libgfs_core_a_SOURCES += \
	src/store/catalogue.c src/store/catalogue.h \
	src/store/catalogue_epoch.c \
	src/store/catalogue_image.c \
	src/store/catalogue_schema.c src/store/catalogue_schema.h \
	src/store/ckpt.c src/store/ckpt.h \
	src/store/io.c src/store/io.h \
	src/store/manifest.c src/store/manifest.h \
	src/store/manifest_json.c src/store/manifest_json.h \
	src/store/manifest_state.c src/store/manifest_state.h \
	src/store/snapshot.c src/store/snapshot.h src/store/snapshot_open.h \
	src/store/snapshot_publish.c \
	src/store/snapshot_verify.c \
	src/store/snapshot_write.c \
	src/store/tree.c src/store/tree.h

# src/model: modules of the models.
libgfs_engine_a_SOURCES += \
	src/model/gpt2.c src/model/gpt2.h \
	src/model/gpt2_config.c \
	src/model/gpt2_run.c \
	src/model/kind.h \
	src/model/model.c src/model/model.h \
	src/model/presets.c \
	src/model/read.c src/model/reader.h

# src/engine: step, agenda, takes, data, optimizer, schedule; the program gatherfs-rank.
libgfs_engine_a_SOURCES += \
	src/engine/agenda.c src/engine/agenda.h \
	src/engine/arrays.c src/engine/arrays.h \
	src/engine/gpu_list.c src/engine/gpu_list.h \
	src/engine/memory_sheet.c src/engine/memory_sheet.h \
	src/engine/plan.c src/engine/plan.h \
	src/engine/pool.c src/engine/pool.h \
	src/engine/rank.c src/engine/rank.h \
	src/engine/restore.c src/engine/restore.h \
	src/engine/service.c src/engine/service.h \
	src/engine/stage.c src/engine/stage.h \
	src/engine/take.c src/engine/take.h \
	src/engine/wide.c src/engine/wide.h

pkglibexec_PROGRAMS += gatherfs-rank
gatherfs_rank_SOURCES = src/engine/rank_main.c
gatherfs_rank_LDADD = $(GFS_ENGINE_LINK)

# The trainer and its data.
libgfs_engine_a_CPPFLAGS += $(XXHASH_CFLAGS)
libgfs_engine_a_SOURCES += \
	src/engine/data.c src/engine/data.h \
	src/engine/data_files.c src/engine/data_files.h \
	src/engine/schedule.c src/engine/schedule.h \
	src/engine/trainer.c src/engine/trainer.h src/engine/trainer_parts.h \
	src/engine/trainer_init.c \
	src/engine/trainer_memory.c \
	src/engine/offload.c src/engine/offload.h \
	src/engine/offload_file.c src/engine/offload_file.h \
	src/engine/trainer_optimizer.c \
	src/engine/trainer_state.c \
	src/engine/trainer_units.c

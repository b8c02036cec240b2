# tests/takes-model: the model checker of the take protocol of doc/takes.md, which needs no library.
check_PROGRAMS += tests/takes-model/takes-model
tests_takes_model_takes_model_SOURCES = \
	tests/takes-model/check.c \
	tests/takes-model/daemon.c \
	tests/takes-model/explore.c \
	tests/takes-model/explore.h \
	tests/takes-model/main.c \
	tests/takes-model/model.h \
	tests/takes-model/rules.c \
	tests/takes-model/rules.h \
	tests/takes-model/scenario.c \
	tests/takes-model/scenario.h \
	tests/takes-model/service.c \
	tests/takes-model/store.c \
	tests/takes-model/store.h \
	tests/takes-model/supervisor.c \
	tests/takes-model/trace.c \
	tests/takes-model/world.c
tests_takes_model_takes_model_LDADD =
gfs_test_scripts += tests/takes-model/run-small.sh

# tests/cuda: a GPU for machines without one. libgfs_emu.a is what kernels compiled by g++ run on, and
# doubles of cudart, cuBLASLt and NCCL to be linked in their place; libgfs_emu_race.a is the same with
# the race detector, for programs whose objects are X.race.o.
gfs_emu_sources = \
	tests/cuda/double_cublaslt.c tests/cuda/double_cublaslt.h \
	tests/cuda/double_cublaslt_product.c tests/cuda/double_cublaslt_product.h \
	tests/cuda/double_cudart.c tests/cuda/double_cudart.h \
	tests/cuda/double_cudart_device.c \
	tests/cuda/double_cudart_errors.c \
	tests/cuda/double_nccl.c tests/cuda/double_nccl.h \
	tests/cuda/double_nccl_world.c tests/cuda/double_nccl_world.h \
	tests/cuda/emu_block.c tests/cuda/emu_block.h \
	tests/cuda/emu_control.c tests/cuda/emu_control.h \
	tests/cuda/emu_fiber.c tests/cuda/emu_fiber.h tests/cuda/emu_fiber_sanitizer.h \
	tests/cuda/emu_launch.c \
	tests/cuda/emu_memory.c tests/cuda/emu_memory.h \
	tests/cuda/emu_queue.c tests/cuda/emu_queue.h tests/cuda/emu_queue_internal.h \
	tests/cuda/emu_race.h \
	tests/cuda/emu_schedule.c \
	tests/cuda/emu_shared.c tests/cuda/emu_shared.h \
	tests/cuda/emu_stream.h
gfs_emu_cppflags = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS) $(NCCL_CFLAGS) $(OPENBLAS_CFLAGS)

if GFS_EMULATION
noinst_LIBRARIES += libgfs_emu.a
libgfs_emu_a_SOURCES = $(gfs_emu_sources) tests/cuda/emu_race_none.c
libgfs_emu_a_CPPFLAGS = $(gfs_emu_cppflags)
libgfs_emu_a_CFLAGS = $(AM_CFLAGS) -fPIC -fvisibility=hidden
endif
EXTRA_DIST += tests/cuda/emu.h tests/cuda/emu_math.h tests/cuda/emu_mma.h

if GFS_EMULATION
gfs_unit_tests += tests/cuda/test_emu
tests_cuda_test_emu_SOURCES = tests/cuda/test_emu.c tests/cuda/test_emu.h \
	tests/cuda/test_emu_blocks.c tests/cuda/test_emu_queues.c tests/cuda/test_emu_refusals.c \
	tests/cuda/test_emu_rig.c
tests_cuda_test_emu_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS)
tests_cuda_test_emu_LDADD = tests/cuda/test_emu_kernels.emu.o libgfs_emu.a $(CMOCKA_LIBS) -lm
EXTRA_tests_cuda_test_emu_DEPENDENCIES = tests/cuda/test_emu_kernels.emu.o
-include tests/cuda/test_emu_kernels.emu.d
CLEANFILES += tests/cuda/*.emu.o tests/cuda/*.d
endif
EXTRA_DIST += tests/cuda/test_emu_kernels.cu

# The engine on it.
if GFS_EMULATION
gfs_test_scripts += tests/cuda/test_engine.sh
endif
if GFS_EMULATION
gfs_test_scripts += tests/cuda/test_injection.sh
check_PROGRAMS += tests/cuda/injection
tests_cuda_injection_SOURCES = tests/cuda/injection.c
tests_cuda_injection_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS)
tests_cuda_injection_LDADD = $(GFS_EMULATED_LINK) $(GFS_ENGINE_LINK)
endif

# X.race.o: X.c or X.cu as the race detector sees it. Functions of the C library that touch memory or
# order threads are called by the names that race.syms gives them.
if GFS_RACES
check_LIBRARIES = libgfs_emu_race.a
libgfs_emu_race_a_SOURCES = $(gfs_emu_sources) \
	tests/cuda/emu_race.c \
	tests/cuda/emu_race_shadow.c tests/cuda/emu_race_shadow.h \
	tests/cuda/emu_race_sync.h \
	tests/cuda/emu_tsan.c
libgfs_emu_race_a_CPPFLAGS = $(gfs_emu_cppflags)

gfs_race_flags = -fsanitize=thread --param tsan-instrument-func-entry-exit=0 -U_FORTIFY_SOURCE \
	-Wno-error -Wno-tsan -Wno-null-dereference -Wno-maybe-uninitialized -I$(srcdir) $(AM_CPPFLAGS) $(CUDA_CFLAGS)
gfs_race_rename = $(OBJCOPY) --redefine-syms=$(srcdir)/tests/cuda/race.syms
%.race.o: %.c
	@$(MKDIR_P) $(@D)
	$(AM_V_CC)$(CC) $(DEFS) -I. $(CPPFLAGS) $(AM_CFLAGS) $(CFLAGS) $(gfs_race_flags) \
		$(gfs_race_cppflags) -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< -o $@.tmp && \
		$(gfs_race_rename) $@.tmp $@ && rm -f $@.tmp
%.race.o: %.cu
	@$(MKDIR_P) $(@D)
	$(AM_V_EMU)$(CXX) -x c++ $(GFS_CXXFLAGS) $(CXXFLAGS) $(gfs_race_flags) -fno-exceptions \
		-fno-rtti -fno-threadsafe-statics -DGFS_EMULATION=1 -MMD -MP -MF $(@:.o=.d) -MT $@ -c $< \
		-o $@.tmp && $(gfs_race_rename) $@.tmp $@ && rm -f $@.tmp

gfs_unit_tests += tests/cuda/test_race
tests_cuda_test_race_SOURCES = tests/cuda/test_race_main.c tests/cuda/test_emu_rig.c \
	tests/cuda/test_emu.h tests/cuda/test_race.h
tests_cuda_test_race_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS)
gfs_race_objects = tests/cuda/test_race.race.o tests/cuda/test_race_kernels.race.o
tests_cuda_test_race_LDADD = $(gfs_race_objects) libgfs_emu_race.a $(CMOCKA_LIBS) $(OPENBLAS_LIBS) -lm
EXTRA_tests_cuda_test_race_DEPENDENCIES = $(gfs_race_objects)
-include $(gfs_race_objects:.o=.d)
CLEANFILES += tests/cuda/*.race.o

# The trainer of tests/mpi and a rank of a run, with all that they run but for the CPU's kernels.
gfs_race_cppflags = $(gfs_emulated_cppflags) $(libgfs_engine_a_CPPFLAGS)
gfs_race_c = $(filter %.c,$(libgfs_engine_a_SOURCES) $(gfs_cuda_host) $(gfs_cuda_nccl)) \
	src/base/file.c src/base/segment.c src/device/cuda/plugin.c
gfs_race_engine = $(gfs_cuda_kernels:.cu=.race.o) \
	$(patsubst %.c,%.race.o,$(filter-out src/device/cpu/%,$(gfs_race_c)))
check_PROGRAMS += tests/cuda/trainer_race tests/cuda/rank_race
tests_cuda_trainer_race_SOURCES = tests/cuda/race_plugin.c
tests_cuda_trainer_race_LDADD = tests/mpi/trainer_driver.race.o $(gfs_race_engine) libgfs_emu_race.a \
	$(GFS_ENGINE_LINK)
EXTRA_tests_cuda_trainer_race_DEPENDENCIES = tests/mpi/trainer_driver.race.o $(gfs_race_engine)
tests_cuda_rank_race_SOURCES = tests/cuda/race_plugin.c
tests_cuda_rank_race_LDADD = src/engine/rank_main.race.o $(gfs_race_engine) libgfs_emu_race.a \
	$(GFS_ENGINE_LINK)
EXTRA_tests_cuda_rank_race_DEPENDENCIES = src/engine/rank_main.race.o $(gfs_race_engine)
gfs_test_scripts += tests/cuda/test_races.sh
-include $(gfs_race_engine:.o=.d) tests/mpi/trainer_driver.race.d src/engine/rank_main.race.d
CLEANFILES += src/*/*.race.o src/*/*/*.race.o tests/mpi/*.race.o src/*/*.race.d src/*/*/*.race.d \
	tests/mpi/*.race.d
endif
EXTRA_DIST += tests/cuda/race.syms tests/cuda/race_plugin.c \
	tests/cuda/test_race.c tests/cuda/test_race_kernels.cu \
	tests/cuda/emu_race.c tests/cuda/emu_race_none.c tests/cuda/emu_race_shadow.c \
	tests/cuda/emu_race_shadow.h tests/cuda/emu_race_sync.h tests/cuda/emu_tsan.c
# Whatever the configuration that makes the distribution.
EXTRA_DIST += tests/cuda/test_engine.sh tests/cuda/test_injection.sh tests/cuda/test_races.sh

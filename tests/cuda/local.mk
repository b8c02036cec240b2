# tests/cuda: a GPU for machines without one. libgfs_emu.a is what kernels compiled by g++ run on, and
# doubles of cudart, cuBLASLt and NCCL to be linked in their place.
if GFS_EMULATION
noinst_LIBRARIES += libgfs_emu.a
libgfs_emu_a_SOURCES = \
	tests/cuda/double_cublaslt.c tests/cuda/double_cublaslt.h \
	tests/cuda/double_cublaslt_product.c tests/cuda/double_cublaslt_product.h \
	tests/cuda/double_cudart.c tests/cuda/double_cudart.h \
	tests/cuda/double_cudart_device.c \
	tests/cuda/double_cudart_errors.c \
	tests/cuda/double_nccl.c tests/cuda/double_nccl.h \
	tests/cuda/double_nccl_world.c tests/cuda/double_nccl_world.h \
	tests/cuda/emu_block.c tests/cuda/emu_block.h \
	tests/cuda/emu_control.c tests/cuda/emu_control.h \
	tests/cuda/emu_fiber.c tests/cuda/emu_fiber.h \
	tests/cuda/emu_launch.c \
	tests/cuda/emu_memory.c tests/cuda/emu_memory.h \
	tests/cuda/emu_queue.c tests/cuda/emu_queue.h tests/cuda/emu_queue_internal.h \
	tests/cuda/emu_race.h \
	tests/cuda/emu_race_none.c \
	tests/cuda/emu_schedule.c \
	tests/cuda/emu_shared.c tests/cuda/emu_shared.h \
	tests/cuda/emu_stream.h
libgfs_emu_a_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS) $(NCCL_CFLAGS) $(OPENBLAS_CFLAGS)
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

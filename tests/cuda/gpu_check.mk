# tests/cuda: the program of tools/gpu-check, on the doubles; gpu_check.make builds it for GPUs.
gfs_gpu_check = \
	tests/cuda/gpu_check.c tests/cuda/gpu_check.h \
	tests/cuda/gpu_check_bench.c \
	tests/cuda/gpu_check_bench_kernels.c \
	tests/cuda/gpu_check_data.c \
	tests/cuda/gpu_check_engine.c \
	tests/cuda/gpu_check_hashes.c tests/cuda/gpu_check_hashes.h \
	tests/cuda/gpu_check_kernels.c \
	tests/cuda/gpu_check_plugin.c \
	tests/cuda/gpu_check_rig.c tests/cuda/gpu_check_rig.h \
	tests/cuda/gpu_check_snapshot.c \
	tests/cuda/gpu_check_takes.c \
	tests/cuda/gpu_check_wide.c tests/cuda/gpu_check_wide.h \
	tests/cuda/gpu_check_world.c

if GFS_EMULATION
check_PROGRAMS += tests/cuda/gpu_check
tests_cuda_gpu_check_SOURCES = $(gfs_gpu_check) $(gfs_kernel_cases) \
	$(gfs_mma_check) \
	src/comm/comm_nompi.c src/comm/world_fork.c \
	src/device/cuda/plugin.c
tests_cuda_gpu_check_CPPFLAGS = $(gfs_emulated_cppflags)
tests_cuda_gpu_check_LDADD = tests/cuda/mma_check.emu.o $(GFS_EMULATED_LINK) $(GFS_ENGINE_LINK)
EXTRA_tests_cuda_gpu_check_DEPENDENCIES = tests/cuda/mma_check.emu.o
endif

gfs_test_scripts += tests/cuda/test_gpu_check.sh
EXTRA_DIST += $(gfs_gpu_check) tests/cuda/gpu_check.make tests/cuda/gpu_check_no_snapshot.c \
	tests/cuda/torch_gpt2.py

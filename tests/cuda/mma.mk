# tests/cuda: the instructions that tensor-core kernels use, on the emulation.
gfs_mma_check = tests/cuda/mma_check.c tests/cuda/mma_check.h
if GFS_EMULATION
gfs_unit_tests += tests/cuda/test_mma
tests_cuda_test_mma_SOURCES = tests/cuda/test_mma.c tests/cuda/test_mma.h $(gfs_mma_check) \
	tests/cuda/test_emu.h tests/cuda/test_emu_rig.c
tests_cuda_test_mma_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS)
gfs_mma_objects = tests/cuda/mma_check.emu.o tests/cuda/test_mma_kernels.emu.o
tests_cuda_test_mma_LDADD = $(gfs_mma_objects) libgfs_emu.a $(CMOCKA_LIBS) -lm
EXTRA_tests_cuda_test_mma_DEPENDENCIES = $(gfs_mma_objects)
-include $(gfs_mma_objects:.o=.d)
endif
EXTRA_DIST += $(gfs_mma_check) tests/cuda/mma_check.cu tests/cuda/test_mma_kernels.cu

# tests/cuda: the kernels' cases; a real GPU runs the same.
gfs_kernel_cases = \
	tests/cuda/attention_cases.c tests/cuda/basic_cases.c \
	tests/cuda/kernel_cases.c tests/cuda/kernel_cases.h \
	tests/cuda/wide_cases.c

gfs_unit_tests += tests/cuda/test_kernel_cases
tests_cuda_test_kernel_cases_SOURCES = tests/cuda/test_kernel_cases.c $(gfs_kernel_cases)
tests_cuda_test_kernel_cases_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CMOCKA_CFLAGS)
tests_cuda_test_kernel_cases_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

if GFS_EMULATION
gfs_unit_tests += tests/cuda/test_kernels
tests_cuda_test_kernels_SOURCES = tests/cuda/test_kernels.c $(gfs_kernel_cases)
tests_cuda_test_kernels_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS) $(CMOCKA_CFLAGS)
tests_cuda_test_kernels_LDADD = $(GFS_EMULATED_LINK) $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
endif

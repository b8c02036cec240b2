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
tests_cuda_test_kernels_SOURCES = tests/cuda/test_kernels.c $(gfs_kernel_cases) \
	tests/cuda/emulated_cases.c tests/cuda/emulated_cases.h
tests_cuda_test_kernels_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS) $(CMOCKA_CFLAGS)
tests_cuda_test_kernels_LDADD = $(GFS_EMULATED_LINK) $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
endif

if GFS_RACES
gfs_unit_tests += tests/cuda/test_kernels_race
tests_cuda_test_kernels_race_SOURCES = tests/cuda/test_kernels_race.c
tests_cuda_test_kernels_race_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CMOCKA_CFLAGS)
gfs_kernels_race = $(gfs_cuda_kernels:.cu=.race.o) \
	$(patsubst %.c,%.race.o,$(filter %.c,$(gfs_cuda_host) $(gfs_kernel_cases))) \
	tests/cuda/emulated_cases.race.o
tests_cuda_test_kernels_race_LDADD = $(gfs_kernels_race) libgfs_emu_race.a $(GFS_ENGINE_LINK) \
	$(CMOCKA_LIBS)
EXTRA_tests_cuda_test_kernels_race_DEPENDENCIES = $(gfs_kernels_race)
-include $(gfs_kernels_race:.o=.d)
endif

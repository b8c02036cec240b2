# tests/cuda: the doubles of NCCL and cuBLASLt by themselves, and the plugin's collectives on them.
if GFS_EMULATION
gfs_ranks = tests/cuda/ranks.c tests/cuda/ranks.h
gfs_doubles_cppflags = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS) $(NCCL_CFLAGS)

gfs_unit_tests += tests/cuda/test_double_nccl tests/cuda/test_double_cublaslt tests/cuda/test_nccl
tests_cuda_test_double_nccl_SOURCES = tests/cuda/test_double_nccl.c $(gfs_ranks)
tests_cuda_test_double_nccl_CPPFLAGS = $(gfs_doubles_cppflags)
tests_cuda_test_double_nccl_LDADD = libgfs_emu.a $(CMOCKA_LIBS) -lm
tests_cuda_test_double_cublaslt_SOURCES = tests/cuda/test_double_cublaslt.c $(gfs_ranks)
tests_cuda_test_double_cublaslt_CPPFLAGS = $(gfs_doubles_cppflags)
tests_cuda_test_double_cublaslt_LDADD = libgfs_emu.a $(CMOCKA_LIBS) -lm
tests_cuda_test_nccl_SOURCES = tests/cuda/test_nccl.c $(gfs_ranks)
tests_cuda_test_nccl_CPPFLAGS = $(gfs_doubles_cppflags)
tests_cuda_test_nccl_LDADD = $(GFS_EMULATED_LINK) $(GFS_CORE_LINK) $(CMOCKA_LIBS)
endif

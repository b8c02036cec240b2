# tests/cuda: how devices and their plugins are found; needs neither CUDA nor the emulation.
gfs_test_scripts += tests/cuda/test_plugin.sh
check_PROGRAMS += tests/cuda/find_device tests/cuda/fake_plugin.so
tests_cuda_find_device_SOURCES = tests/cuda/find_device.c
tests_cuda_find_device_LDADD = $(GFS_ENGINE_LINK)
tests_cuda_fake_plugin_so_SOURCES = tests/cuda/fake_plugin.c
tests_cuda_fake_plugin_so_CFLAGS = $(AM_CFLAGS) -fPIC -fvisibility=hidden
tests_cuda_fake_plugin_so_LDFLAGS = $(AM_LDFLAGS) -shared
tests_cuda_fake_plugin_so_LDADD =

# The host's side, on the doubles.
if GFS_EMULATION
gfs_unit_tests += tests/cuda/test_host
tests_cuda_test_host_SOURCES = tests/cuda/test_host.c
tests_cuda_test_host_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir) $(CUDA_CFLAGS) $(CMOCKA_CFLAGS)
tests_cuda_test_host_LDADD = $(GFS_EMULATED_LINK) $(GFS_CORE_LINK) $(CMOCKA_LIBS)
endif

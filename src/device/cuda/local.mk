# src/device/cuda: the GPU, as plugins. One is of nvcc's code and NVIDIA's libraries; the other, of test
# builds, is the same sources for this machine's processor, on the doubles of tests/cuda. A plugin
# shows one symbol and needs none of the program: what it uses of src/base it has in itself.
gfs_cuda_kernels = \
	src/device/cuda/attention.cu \
	src/device/cuda/attention_mma.cu \
	src/device/cuda/attention_plain.cu \
	src/device/cuda/embed.cu \
	src/device/cuda/kernels_basic.cu \
	src/device/cuda/layernorm.cu \
	src/device/cuda/optimizer.cu \
	src/device/cuda/scale.cu \
	src/device/cuda/softmax_xent.cu
gfs_cuda_kernel_headers = \
	src/device/cuda/attention.h \
	src/device/cuda/attention_tiles.cuh \
	src/device/cuda/columns.cuh \
	src/device/cuda/kernels.h \
	src/device/cuda/launch.h \
	src/device/cuda/mma.cuh \
	src/device/cuda/vec.cuh
gfs_cuda_host = \
	src/device/cuda/cuda.h \
	src/device/cuda/device.c \
	src/device/cuda/error.c \
	src/device/cuda/gemm.c \
	src/device/cuda/ops.c \
	src/device/cuda/properties.c \
	src/device/cuda/stream.c
gfs_cuda_plugin = src/device/cuda/plugin.c src/device/cuda/plugin_parts.h src/base/err.c
gfs_cuda_nccl = src/comm/nccl/nccl.c src/comm/nccl/nccl.h
EXTRA_DIST += $(gfs_cuda_kernels) $(gfs_cuda_kernel_headers)

gfs_plugin_cppflags = $(AM_CPPFLAGS) $(CUDA_CFLAGS) $(NCCL_CFLAGS)
gfs_plugin_cflags = $(AM_CFLAGS) -fPIC -fvisibility=hidden
gfs_plugin_ldflags = $(AM_LDFLAGS) -shared $(GFS_NO_UNDEFINED) -Wl,--exclude-libs,ALL

gfs_nvcc_host_flags = -fno-threadsafe-statics,-fno-exceptions,-fno-rtti,-fPIC,-fvisibility=hidden
AM_V_NVCC = $(am__v_NVCC_$(V))
am__v_NVCC_ = $(am__v_NVCC_$(AM_DEFAULT_VERBOSITY))
am__v_NVCC_0 = @echo "  NVCC    " $@;
AM_V_EMU = $(am__v_EMU_$(V))
am__v_EMU_ = $(am__v_EMU_$(AM_DEFAULT_VERBOSITY))
am__v_EMU_0 = @echo "  CXX     " $@;
CLEANFILES += src/device/cuda/*.nvcc.o src/device/cuda/*.emu.o src/device/cuda/*.d

if HAVE_CUDA
pkglibexec_PROGRAMS += gatherfs_cuda.so
gatherfs_cuda_so_SOURCES = $(gfs_cuda_host) $(gfs_cuda_plugin)
gatherfs_cuda_so_CPPFLAGS = $(gfs_plugin_cppflags)
gatherfs_cuda_so_CFLAGS = $(gfs_plugin_cflags)
gatherfs_cuda_so_LDFLAGS = $(gfs_plugin_ldflags)
gfs_nvcc_objects = $(gfs_cuda_kernels:.cu=.nvcc.o)
gatherfs_cuda_so_LDADD = $(gfs_nvcc_objects) $(CUDA_LIBS)
EXTRA_gatherfs_cuda_so_DEPENDENCIES = $(gfs_nvcc_objects)
if HAVE_NCCL
gatherfs_cuda_so_SOURCES += $(gfs_cuda_nccl)
gatherfs_cuda_so_CPPFLAGS += -DHAVE_NCCL=1
gatherfs_cuda_so_LDADD += $(NCCL_LIBS)
endif

# A kernel that spills registers is an error, with the compiler and for the architectures that were
# looked at.
%.nvcc.o: %.cu
	@$(MKDIR_P) $(@D)
	$(AM_V_NVCC)$(NVCC) $(NVCC_FLAGS) $(NVCC_SPILLS) -Xcompiler $(gfs_nvcc_host_flags) \
		-I$(srcdir)/src -MMD -MP -MF $(@:.o=.d) -c $< -o $@
-include $(gfs_nvcc_objects:.o=.d)
endif

# libgfs_gpu_emulated.a has all but the plugin's symbol, for tests that set the doubles themselves.
if GFS_EMULATION
noinst_PROGRAMS += gatherfs_emulated.so
noinst_LIBRARIES += libgfs_gpu_emulated.a
gfs_emulated_cppflags = $(gfs_plugin_cppflags) -I$(srcdir) -DHAVE_NCCL=1 \
	-DCUDA_DEVICE_NAME='"emulated"' -DPLUGIN_TARGETS='"emulated"'
libgfs_gpu_emulated_a_SOURCES = $(gfs_cuda_host) $(gfs_cuda_nccl)
libgfs_gpu_emulated_a_CPPFLAGS = $(gfs_emulated_cppflags)
libgfs_gpu_emulated_a_CFLAGS = $(gfs_plugin_cflags)
gfs_emu_objects = $(gfs_cuda_kernels:.cu=.emu.o)
libgfs_gpu_emulated_a_LIBADD = $(gfs_emu_objects)
EXTRA_libgfs_gpu_emulated_a_DEPENDENCIES = $(gfs_emu_objects)
GFS_EMULATED_LINK = libgfs_gpu_emulated.a libgfs_emu.a $(OPENBLAS_LIBS) -lm

gatherfs_emulated_so_SOURCES = $(gfs_cuda_plugin)
gatherfs_emulated_so_CPPFLAGS = $(gfs_emulated_cppflags)
gatherfs_emulated_so_CFLAGS = $(gfs_plugin_cflags)
gatherfs_emulated_so_LDFLAGS = $(gfs_plugin_ldflags)
gatherfs_emulated_so_LDADD = $(GFS_EMULATED_LINK)

libgfs_engine_a_CPPFLAGS += -DGFS_BUILD_DIR='"$(abs_top_builddir)"'

%.emu.o: %.cu
	@$(MKDIR_P) $(@D)
	$(AM_V_EMU)$(CXX) -x c++ $(GFS_CXXFLAGS) $(GFS_SANITIZER_CFLAGS) $(CXXFLAGS) -fPIC \
		-fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics -DGFS_EMULATION=1 \
		-I$(srcdir) -I$(srcdir)/src $(CUDA_CFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
-include $(gfs_emu_objects:.o=.d)
endif

# gpu_check.make - builds the program of tools/gpu-check without configure, in the current folder. For
# GNU make. It needs gcc and the CUDA toolkit; with EMULATED=1 g++ and the headers of CUDA and NCCL.
#
#   make -f SRC/tests/cuda/gpu_check.make SRC=... NVCC=... ARCHS="90" CUDA_VERSION=13.0 ...
#
#   CUDA_CFLAGS, CUDA_LIBS     headers; cudart and cuBLASLt
#   NCCL_CFLAGS, NCCL_LIBS     NCCL; both empty: without
#   BLAS_CFLAGS, BLAS_LIBS     OpenBLAS, for the reference; empty: plain loops of our own
#   STORE_CFLAGS, STORE_LIBS   jansson and xxhash, for snapshots; empty: NO_STORE says what lacks

CC = gcc
CXX = g++
NVCC = nvcc
ARCHS = 80 90 100
CFLAGS = -O2
NO_STORE = no jansson
# Where kernels must not spill registers; elsewhere nobody has looked, and it is no reason not to run.
SPILL_FREE = 80 90 100
SPILL_FREE_CUDA = 13.0

warnings = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Wundef
all_cflags = -std=c11 -pthread -fno-common $(warnings) $(CFLAGS)
cppflags = -I. -I$(SRC)/src -I$(SRC) $(CUDA_CFLAGS) $(NCCL_CFLAGS) $(BLAS_CFLAGS) $(STORE_CFLAGS)
libs = -lm -lpthread -ldl

kernels = attention attention_mma attention_plain embed kernels_basic layernorm optimizer scale softmax_xent
cu = $(kernels:%=src/device/cuda/%.cu) tests/cuda/mma_check.cu

c = $(addprefix src/base/,buf.c err.c file.c knobs.c knobs_check.c log.c parse.c segment.c) \
	src/tensor/tensor.c src/shard/layout.c src/shard/wrap.c \
	$(addprefix src/device/,device.c philox.c recording.c recording_ops.c) \
	$(addprefix src/device/cpu/,attention.c blas.c cpu.c gemm.c gemm_v4.c kernels.c kernels_base.c \
		kernels_v3.c kernels_v4.c onednn.c ops.c team.c) \
	$(addprefix src/device/cuda/,device.c error.c gemm.c ops.c plugin.c properties.c stream.c) \
	$(addprefix src/comm/,comm.c comm_nccl.c comm_node.c comm_nompi.c comm_self.c comm_staged.c host_part.c \
		fold.c node_barrier.c node_memory.c world_fork.c) \
	$(addprefix src/model/,gpt2.c gpt2_run.c model.c) \
	$(addprefix src/engine/,arrays.c offload.c offload_file.c schedule.c stage.c trainer.c \
		trainer_init.c trainer_memory.c trainer_optimizer.c trainer_state.c trainer_units.c) \
	$(addprefix tests/cuda/,attention_cases.c basic_cases.c kernel_cases.c wide_cases.c mma_check.c) \
	$(addprefix tests/cuda/gpu_check,.c _bench.c _bench_kernels.c _data.c _engine.c _hashes.c \
		_kernels.c _plugin.c _rig.c _takes.c _wide.c _world.c)

ifneq ($(NCCL_LIBS)$(EMULATED),)
c += src/comm/nccl/nccl.c
cppflags += -DHAVE_NCCL=1
libs := $(NCCL_LIBS) $(libs)
endif
ifeq ($(BLAS_LIBS),)
cppflags += -DGFS_NO_BLAS=1
else
libs := $(BLAS_LIBS) $(libs)
endif
ifeq ($(STORE_LIBS),)
c += tests/cuda/gpu_check_no_snapshot.c
else
c += tests/cuda/gpu_check_snapshot.c src/tensor/jsontext.c \
	$(addprefix src/store/,io.c manifest.c manifest_json.c manifest_state.c snapshot.c \
		snapshot_publish.c snapshot_verify.c snapshot_write.c tree.c)
libs := $(STORE_LIBS) $(libs)
endif
ifeq ($(EMULATED),)
cu_object = nvcc.o
libs := $(CUDA_LIBS) $(libs)
else
cu_object = emu.o
c += $(filter-out tests/cuda/emu_race% tests/cuda/emu_tsan.c,$(patsubst $(SRC)/%,%, \
	$(wildcard $(SRC)/tests/cuda/emu_*.c $(SRC)/tests/cuda/double_*.c))) tests/cuda/emu_race_none.c
cppflags += -DCUDA_DEVICE_NAME='"emulated"'
endif

objects = $(c:.c=.o) $(cu:.cu=.$(cu_object))

gpu_check: $(objects)
	@echo "  LINK     $@"
	@$(CC) $(all_cflags) $(LDFLAGS) -o $@ $(objects) $(libs)

# What configure would have found out, in so far as these sources ask.
config.h: $(firstword $(MAKEFILE_LIST)) options
	@printf '#define %s\n' '_GNU_SOURCE 1' '_FILE_OFFSET_BITS 64' 'PACKAGE_VERSION "gpu-check"' \
		'GFS_CUDA_VERSION "$(CUDA_VERSION)"' \
		'GFS_CUDA_TARGETS "$(if $(EMULATED),emulated,$(ARCHS:%=sm_%))"' \
		'GFS_NO_STORE "$(NO_STORE)"' >$@

# All objects are made anew with other options.
options: FORCE
	@echo '$(subst ','\'',$(CC) $(CXX) $(NVCC) $(ARCHS) $(all_cflags) $(cppflags) $(libs))' >$@.new
	@cmp -s $@.new $@ || mv $@.new $@
FORCE:
.PHONY: FORCE

$(c:.c=.o): %.o: $(SRC)/%.c config.h
	@mkdir -p $(@D); echo "  CC       $*.c"
	@$(CC) $(all_cflags) $(cppflags) -MMD -MP -c $< -o $@

gencode = $(foreach a,$(ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	-gencode arch=compute_$(lastword $(ARCHS)),code=compute_$(lastword $(ARCHS))
others = $(filter-out $(SPILL_FREE),$(ARCHS)) $(filter-out $(SPILL_FREE_CUDA),$(CUDA_VERSION))
spills = -Xptxas -warn-spills$(if $(strip $(others)),,$(comma)-Werror)
comma = ,
$(cu:.cu=.nvcc.o): %.nvcc.o: $(SRC)/%.cu config.h
	@mkdir -p $(@D); echo "  NVCC     $*.cu"
	@$(NVCC) -std=c++17 -O3 $(gencode) $(spills) $(if $(CXX),-ccbin $(CXX)) \
		-Xcompiler -fno-threadsafe-statics,-fno-exceptions,-fno-rtti \
		-I$(SRC)/src -I$(SRC) -MMD -MP -MF $(@:.o=.d) -c $< -o $@

$(cu:.cu=.emu.o): %.emu.o: $(SRC)/%.cu config.h
	@mkdir -p $(@D); echo "  CXX      $*.cu"
	@$(CXX) -x c++ -std=c++17 -pthread -O2 -Wno-unknown-pragmas -fno-exceptions -fno-rtti \
		-fno-threadsafe-statics -DGFS_EMULATION=1 -I$(SRC)/src -I$(SRC) $(CUDA_CFLAGS) \
		-MMD -MP -MF $(@:.o=.d) -c $< -o $@

-include $(objects:.o=.d)

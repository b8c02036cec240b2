# src/device: tables of device operations.
libgfs_engine_a_SOURCES += \
	src/device/device.c src/device/device.h \
	src/device/plugin.h \
	src/device/plugin_find.c src/device/plugin_find.h \
	src/device/philox.c src/device/philox.h \
	src/device/recording.c src/device/recording.h \
	src/device/recording_list.h \
	src/device/recording_ops.c \
	src/device/cpu/attention.c \
	src/device/cpu/attention_body.h \
	src/device/cpu/blas.c \
	src/device/cpu/cpu.c src/device/cpu/cpu.h \
	src/device/cpu/gemm.c src/device/cpu/gemm_body.h \
	src/device/cpu/gemm_v4.c \
	src/device/cpu/kernels.c src/device/cpu/kernels.h \
	src/device/cpu/kernels_base.c \
	src/device/cpu/kernels_body.h \
	src/device/cpu/kernels_v3.c \
	src/device/cpu/kernels_v4.c \
	src/device/cpu/loss_body.h \
	src/device/cpu/onednn.c src/device/cpu/onednn.h \
	src/device/cpu/onednn_api.h \
	src/device/cpu/onednn_threads.c \
	src/device/cpu/onednn_v2.c \
	src/device/cpu/onednn_v3.c \
	src/device/cpu/ops.c \
	src/device/cpu/team.c src/device/cpu/team.h \
	src/device/cpu/simd_base.h src/device/cpu/simd_v3.h src/device/cpu/simd_v4.h \
	src/device/cpu/table_body.h

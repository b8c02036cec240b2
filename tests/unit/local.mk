# tests/unit: one part at a time, with cmocka.
gfs_unit_tests += tests/unit/test_gpt2
tests_unit_test_gpt2_SOURCES = tests/unit/test_gpt2.c \
	tests/unit/gpt2_ref_double.c tests/unit/gpt2_ref_double.h \
	tests/unit/model_harness.c tests/unit/model_harness.h
tests_unit_test_gpt2_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

gfs_unit_tests += tests/unit/test_reference
tests_unit_test_reference_SOURCES = tests/unit/test_reference.c \
	tests/unit/model_harness.c tests/unit/model_harness.h
tests_unit_test_reference_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
EXTRA_DIST += tests/reference/expected_gpt2.txt tests/reference/make_expectations.py \
	tests/reference/test_expectations.py tests/reference/test_hf_loss.py

gfs_store_fixture = tests/unit/store_fixture.c tests/unit/store_fixture.h
gfs_unit_tests += tests/unit/test_tensor tests/unit/test_hf
tests_unit_test_tensor_SOURCES = tests/unit/test_tensor.c
tests_unit_test_hf_SOURCES = tests/unit/test_hf.c
gfs_unit_tests += tests/unit/test_snapshot
tests_unit_test_snapshot_SOURCES = tests/unit/test_snapshot.c $(gfs_store_fixture)

gfs_unit_tests += tests/unit/test_kernels
tests_unit_test_kernels_SOURCES = tests/unit/test_kernels.c \
	tests/unit/device_fixture.c tests/unit/device_fixture.h
tests_unit_test_kernels_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

gfs_unit_tests += tests/unit/test_bf16
tests_unit_test_bf16_SOURCES = tests/unit/test_bf16.c \
	tests/unit/device_fixture.c tests/unit/device_fixture.h
tests_unit_test_bf16_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

gfs_unit_tests += tests/unit/test_bf16_step
tests_unit_test_bf16_step_SOURCES = tests/unit/test_bf16_step.c \
	tests/unit/model_harness.c tests/unit/model_harness.h
tests_unit_test_bf16_step_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

gfs_unit_tests += tests/unit/test_attention
tests_unit_test_attention_SOURCES = tests/unit/test_attention.c \
	tests/unit/device_fixture.c tests/unit/device_fixture.h
tests_unit_test_attention_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

check_PROGRAMS += tests/unit/bench_kernels
tests_unit_bench_kernels_SOURCES = tests/unit/bench_kernels.c \
	tests/unit/model_harness.c tests/unit/model_harness.h
tests_unit_bench_kernels_LDADD = $(GFS_ENGINE_LINK)

gfs_unit_tests += tests/unit/test_offload
tests_unit_test_offload_SOURCES = tests/unit/test_offload.c
tests_unit_test_offload_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

# Arrays and takes of a rank.
gfs_engine_world = tests/unit/engine_world.c tests/unit/engine_world.h \
	tests/unit/async_device.c tests/unit/async_device.h
gfs_arrays_race = $(gfs_engine_world) tests/unit/arrays_race.c tests/unit/arrays_race.h
gfs_unit_tests += tests/unit/test_arrays
tests_unit_test_arrays_SOURCES = tests/unit/test_arrays.c $(gfs_arrays_race)
tests_unit_test_arrays_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
gfs_unit_tests += tests/unit/test_stage tests/unit/test_arrays_device \
	tests/unit/test_arrays_elsewhere
tests_unit_test_stage_SOURCES = tests/unit/test_stage.c \
	tests/unit/async_device.c tests/unit/async_device.h
tests_unit_test_stage_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
tests_unit_test_arrays_device_SOURCES = tests/unit/test_arrays_device.c $(gfs_arrays_race)
tests_unit_test_arrays_device_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
tests_unit_test_arrays_elsewhere_SOURCES = tests/unit/test_arrays_elsewhere.c $(gfs_engine_world)
tests_unit_test_arrays_elsewhere_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

gfs_layout_check = tests/unit/layout_check.c tests/unit/layout_check.h
gfs_unit_tests += tests/unit/test_layout tests/unit/test_layout_wire tests/unit/test_wrap
tests_unit_test_layout_SOURCES = tests/unit/test_layout.c $(gfs_layout_check)
tests_unit_test_layout_wire_SOURCES = tests/unit/test_layout_wire.c $(gfs_layout_check) \
	tests/unit/fixture.c tests/unit/fixture.h
tests_unit_test_wrap_SOURCES = tests/unit/test_wrap.c $(gfs_layout_check)

gfs_unit_tests += tests/unit/test_model
tests_unit_test_model_SOURCES = tests/unit/test_model.c
tests_unit_test_model_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

gfs_unit_tests += tests/unit/test_recording
tests_unit_test_recording_SOURCES = tests/unit/test_recording.c \
	tests/unit/model_harness.c tests/unit/model_harness.h
tests_unit_test_recording_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

# Data, schedule and communicators.
gfs_unit_tests += tests/unit/test_data tests/unit/test_schedule tests/unit/test_comm
tests_unit_test_data_SOURCES = tests/unit/test_data.c
tests_unit_test_data_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
tests_unit_test_schedule_SOURCES = tests/unit/test_schedule.c
tests_unit_test_schedule_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
tests_unit_test_comm_SOURCES = tests/unit/test_comm.c
tests_unit_test_comm_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
gfs_unit_tests += tests/unit/test_manifest tests/unit/test_catalogue
tests_unit_test_manifest_SOURCES = tests/unit/test_manifest.c $(gfs_store_fixture)
tests_unit_test_catalogue_SOURCES = tests/unit/test_catalogue.c $(gfs_store_fixture)
gfs_unit_tests += tests/unit/test_pool
tests_unit_test_pool_SOURCES = tests/unit/test_pool.c
tests_unit_test_pool_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
gfs_unit_tests += tests/unit/test_agenda
tests_unit_test_agenda_SOURCES = tests/unit/test_agenda.c
tests_unit_test_agenda_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
gfs_unit_tests += tests/unit/test_ckpt
tests_unit_test_ckpt_SOURCES = tests/unit/test_ckpt.c $(gfs_store_fixture)
check_PROGRAMS += tests/unit/write_formats
tests_unit_write_formats_SOURCES = tests/unit/write_formats.c
tests_unit_write_formats_LDADD = $(GFS_CORE_LINK)
gfs_test_scripts += tests/unit/test_formats.sh
EXTRA_DIST += tests/unit/read_formats.py
gfs_unit_tests += tests/unit/test_trainer_order
tests_unit_test_trainer_order_SOURCES = tests/unit/test_trainer_order.c
tests_unit_test_trainer_order_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

gfs_link_harness = tests/unit/link_harness.c tests/unit/link_harness.h \
	tests/unit/fixture.c tests/unit/fixture.h
gfs_unit_tests += tests/unit/test_link tests/unit/test_link_fds tests/unit/test_link_socket
tests_unit_test_link_SOURCES = tests/unit/test_link.c $(gfs_link_harness)
tests_unit_test_link_fds_SOURCES = tests/unit/test_link_fds.c $(gfs_link_harness)
tests_unit_test_link_socket_SOURCES = tests/unit/test_link_socket.c $(gfs_link_harness)
gfs_unit_tests += tests/unit/test_link_faults
tests_unit_test_link_faults_SOURCES = tests/unit/test_link_faults.c $(gfs_link_harness)
tests_unit_test_link_faults_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=sendmsg -Wl,--wrap=recvmsg

gfs_unit_tests += tests/unit/test_msg
tests_unit_test_msg_SOURCES = tests/unit/test_msg.c $(gfs_link_harness)
gfs_test_scripts += tests/unit/msg_fields.sh tests/unit/headers.sh
gfs_service_rig = $(gfs_engine_world) tests/unit/service_rig.c tests/unit/service_rig.h
gfs_unit_tests += tests/unit/test_service
tests_unit_test_service_SOURCES = tests/unit/test_service.c $(gfs_service_rig)
tests_unit_test_service_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
gfs_unit_tests += tests/unit/test_service_device
tests_unit_test_service_device_SOURCES = tests/unit/test_service_device.c $(gfs_service_rig)
tests_unit_test_service_device_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

# The supervisor.
gfs_unit_tests += tests/unit/test_knobs tests/unit/test_goal tests/unit/test_ledger
tests_unit_test_knobs_SOURCES = tests/unit/test_knobs.c
tests_unit_test_goal_SOURCES = tests/unit/test_goal.c
tests_unit_test_goal_LDADD = $(GFS_RUN_LINK) $(CMOCKA_LIBS)
tests_unit_test_ledger_SOURCES = tests/unit/test_ledger.c
tests_unit_test_ledger_LDADD = $(GFS_RUN_LINK) $(CMOCKA_LIBS)
gfs_unit_tests += tests/unit/test_gpus tests/unit/test_mfu tests/unit/test_memory_sheet
tests_unit_test_gpus_SOURCES = tests/unit/test_gpus.c
tests_unit_test_gpus_LDADD = $(GFS_RUN_LINK) $(CMOCKA_LIBS)
tests_unit_test_mfu_SOURCES = tests/unit/test_mfu.c
tests_unit_test_mfu_LDADD = $(GFS_RUN_LINK) $(CMOCKA_LIBS)
tests_unit_test_memory_sheet_SOURCES = tests/unit/test_memory_sheet.c
tests_unit_test_memory_sheet_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)

gfs_unit_tests += tests/unit/test_buf tests/unit/test_err tests/unit/test_parse tests/unit/test_log
tests_unit_test_buf_SOURCES = tests/unit/test_buf.c
tests_unit_test_err_SOURCES = tests/unit/test_err.c
tests_unit_test_parse_SOURCES = tests/unit/test_parse.c
tests_unit_test_log_SOURCES = tests/unit/test_log.c
gfs_unit_tests += tests/unit/test_file tests/unit/test_segment
tests_unit_test_file_SOURCES = tests/unit/test_file.c tests/unit/fixture.c tests/unit/fixture.h
tests_unit_test_segment_SOURCES = tests/unit/test_segment.c tests/unit/fixture.c \
	tests/unit/fixture.h

gfs_unit_tests += tests/unit/test_alloc_faults
tests_unit_test_alloc_faults_SOURCES = tests/unit/test_alloc_faults.c $(gfs_link_harness) \
	$(gfs_layout_check)
tests_unit_test_alloc_faults_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=malloc -Wl,--wrap=calloc \
	-Wl,--wrap=realloc -Wl,--wrap=strndup -Wl,--wrap=free
gfs_unit_tests += tests/unit/test_wide
tests_unit_test_wide_SOURCES = tests/unit/test_wide.c $(gfs_service_rig)
tests_unit_test_wide_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
gfs_unit_tests += tests/unit/test_takes_explore
tests_unit_test_takes_explore_SOURCES = tests/unit/test_takes_explore.c $(gfs_engine_world)
tests_unit_test_takes_explore_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
gfs_unit_tests += tests/unit/test_restore
tests_unit_test_restore_SOURCES = tests/unit/test_restore.c \
	tests/unit/async_device.c tests/unit/async_device.h
tests_unit_test_restore_LDADD = $(GFS_ENGINE_LINK) $(CMOCKA_LIBS)
# The manual, against the tables that it describes.
check_PROGRAMS += tests/unit/print_knobs
tests_unit_print_knobs_SOURCES = tests/unit/print_knobs.c
tests_unit_print_knobs_LDADD = $(GFS_CORE_LINK)
if HAVE_FUSE
check_PROGRAMS += tests/unit/print_mount_files
tests_unit_print_mount_files_SOURCES = tests/unit/print_mount_files.c
tests_unit_print_mount_files_CPPFLAGS = $(libgfs_fsmount_a_CPPFLAGS)
tests_unit_print_mount_files_LDADD = $(GFS_FSMOUNT_LINK)
endif
gfs_test_scripts += tests/unit/man.sh
